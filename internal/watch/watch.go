package watch

import (
	"fmt"
	"math"
	"slices"

	"memplan/internal/fault"
	"memplan/internal/units"
)

// Sample is what a process held at a moment. Zero is not sampled.
type Sample struct {
	Seconds   float64     `json:"seconds,omitempty" doc:"Since any moment."`
	Step      float64     `json:"step,omitempty" doc:"Training steps done."`
	Process   units.Bytes `json:"process_bytes,omitempty"`
	Allocated units.Bytes `json:"allocated_bytes,omitempty"`
	Reserved  units.Bytes `json:"reserved_bytes,omitempty"`
}

// Judgement is what the samples say.
type Judgement struct {
	Samples       int            `json:"samples" doc:"Those judged: the first fifth, in which caches fill, is left out."`
	Leaking       bool           `json:"leaking"`
	Growth        *Growth        `json:"growth" doc:"Null where there are too few samples."`
	OutOfMemory   *OutOfMemory   `json:"out_of_memory" doc:"Null where memory does not grow, or the capacity is not known."`
	Fragmentation *Fragmentation `json:"fragmentation" doc:"Null where reserved and allocated were not sampled together."`
	Advice        []string       `json:"advice"`
}

// Growth is the slope of a metric.
type Growth struct {
	Of         string  `json:"of" enum:"allocated,reserved,process"`
	Per        string  `json:"per" enum:"step,second"`
	Bytes      float64 `json:"bytes"`
	Low        float64 `json:"low_bytes" doc:"Of the 90 % interval."`
	High       float64 `json:"high_bytes"`
	Confidence float64 `json:"confidence" doc:"Probability that samples which do not grow would rise less."`
}

// OutOfMemory is when the growth reaches the capacity, in steps or seconds from
// the last sample.
type OutOfMemory struct {
	In       float64  `json:"in"`
	Earliest float64  `json:"earliest"`
	Latest   *float64 `json:"latest" doc:"Null: it may never."`
	Per      string   `json:"per" enum:"step,second"`
}

// Fragmentation is the share of what the allocator reserves that no tensor uses.
type Fragmentation struct {
	Share float64 `json:"share" doc:"In the last sample."`
	Most  float64 `json:"most" doc:"In any sample judged."`
}

const (
	leastSamples = 8
	mostSamples  = 600 // pairs of samples are compared; more are thinned out
	warmUp       = 5   // one in so many samples, at the beginning, is not judged
	sure         = 0.95
	ninety       = 1.6449
)

// A growth below both is noise, whatever its confidence.
const (
	leastGrowth = 32 * units.MiB
	leastShare  = 0.002
)

// Judge judges samples in the order they were taken. capacity is what the
// process may hold, 0 when not known. The error is fault.Fields.
func Judge(samples []Sample, capacity units.Bytes) (Judgement, error) {
	j := Judgement{Advice: []string{}}
	per, at, err := clock(samples)
	if err != nil {
		return j, err
	}
	judged := thin(samples[len(samples)/warmUp:])
	j.Samples = len(judged)
	j.Fragmentation = fragmentation(judged)
	name, value := metric(judged)
	if len(judged) >= leastSamples && value != nil {
		j.Growth = slope(judged, at, value)
		j.Growth.Of, j.Growth.Per = name, per
		rise := j.Growth.Bytes * (at(judged[len(judged)-1]) - at(judged[0]))
		level := float64(value(judged[len(judged)-1]))
		j.Leaking = j.Growth.Confidence >= sure && j.Growth.Low > 0 && rise >= max(float64(leastGrowth), leastShare*level)
	}
	if j.Leaking && capacity > 0 {
		j.OutOfMemory = project(*j.Growth, judged[len(judged)-1], capacity)
	}
	j.advise()
	return j, nil
}

// clock is what samples are ordered by: steps where all say them.
func clock(samples []Sample) (per string, at func(Sample) float64, err error) {
	per, at = "step", func(s Sample) float64 { return s.Step }
	if !rises(samples, at) {
		per, at = "second", func(s Sample) float64 { return s.Seconds }
	}
	var wrong fault.Fields
	if len(samples) < 2 {
		wrong.Add("samples", len(samples), "at least two samples", "")
	} else if !rises(samples, at) {
		wrong.Add("samples", "", "samples in order: step or seconds in each, and rising", "")
	}
	return per, at, wrong.Err()
}

func rises(samples []Sample, at func(Sample) float64) bool {
	for i := 1; i < len(samples); i++ {
		if !(at(samples[i]) > at(samples[i-1])) {
			return false
		}
	}
	return true
}

// thin keeps samples at equal distances, the last among them.
func thin(samples []Sample) []Sample {
	if len(samples) <= mostSamples {
		return samples
	}
	out := make([]Sample, mostSamples)
	for i := range out {
		out[i] = samples[(i+1)*len(samples)/mostSamples-1]
	}
	return out
}

// metric is the closest to what leaks that was sampled throughout: tensors
// before segments before the process.
func metric(samples []Sample) (string, func(Sample) units.Bytes) {
	for _, m := range []struct {
		name string
		of   func(Sample) units.Bytes
	}{
		{"allocated", func(s Sample) units.Bytes { return s.Allocated }},
		{"reserved", func(s Sample) units.Bytes { return s.Reserved }},
		{"process", func(s Sample) units.Bytes { return s.Process }},
	} {
		if !slices.ContainsFunc(samples, func(s Sample) bool { return m.of(s) <= 0 }) {
			return m.name, m.of
		}
	}
	return "", nil
}

// slope is Sen's: the median slope of all pairs, which a spike does not move,
// with its interval and confidence by Kendall's count of rising pairs (Sen,
// Estimates of the Regression Coefficient Based on Kendall's Tau, 1968).
func slope(samples []Sample, at func(Sample) float64, value func(Sample) units.Bytes) *Growth {
	var slopes []float64
	rising := 0.0
	ties := map[units.Bytes]float64{}
	for i, a := range samples {
		ties[value(a)]++
		for _, b := range samples[i+1:] {
			d := float64(value(b) - value(a))
			slopes = append(slopes, d/(at(b)-at(a)))
			switch {
			case d > 0:
				rising++
			case d < 0:
				rising--
			}
		}
	}
	slices.Sort(slopes)
	n := float64(len(samples))
	variance := n * (n - 1) * (2*n + 5)
	for _, t := range ties {
		variance -= t * (t - 1) * (2*t + 5)
	}
	sd := math.Sqrt(max(variance, 0) / 18)
	half := ninety * sd / 2
	middle := float64(len(slopes)) / 2
	pick := func(x float64) float64 { return slopes[min(max(int(x), 0), len(slopes)-1)] }
	g := &Growth{Bytes: pick(middle), Low: pick(middle - half), High: pick(middle + half)}
	if sd > 0 {
		g.Confidence = math.Round(0.5*math.Erfc(-(rising-1)/sd/math.Sqrt2)*1e4) / 1e4
	}
	return g
}

// project is when the process reaches its capacity. What is not a tensor is
// taken to stay as it is.
func project(g Growth, last Sample, capacity units.Bytes) *OutOfMemory {
	held := max(last.Process, last.Reserved, last.Allocated)
	room := max(0, float64(capacity-held))
	if last.Reserved > last.Allocated && g.Of == "allocated" { // the cache is used up first
		room += float64(last.Reserved - last.Allocated)
	}
	o := &OutOfMemory{In: room / g.Bytes, Earliest: room / g.High, Per: g.Per}
	if g.Low > 0 {
		latest := room / g.Low
		o.Latest = &latest
	}
	return o
}

func fragmentation(samples []Sample) *Fragmentation {
	var f *Fragmentation
	for _, s := range samples {
		if s.Reserved <= 0 || s.Allocated <= 0 {
			continue
		}
		share := max(0, 1-float64(s.Allocated)/float64(s.Reserved))
		if f == nil {
			f = &Fragmentation{}
		}
		f.Share, f.Most = share, max(f.Most, share)
	}
	return f
}

// fragmented is from where on a share is worth doing something about.
const fragmented = 0.25

// advise says what to do about what was found.
func (j *Judgement) advise() {
	say := func(format string, args ...any) { j.Advice = append(j.Advice, fmt.Sprintf(format, args...)) }
	if j.Growth == nil {
		say("Too few samples to see growth: at least %d are needed after the first fifth, at the same point of each step.", leastSamples)
	}
	if j.Leaking {
		say("Memory grows by %s a %s. The usual causes: a loss or a metric summed up without .item() or .detach(), outputs kept in a list, hooks that are never removed, a cache of shapes that keep changing.", units.Bytes(j.Growth.Bytes), j.Growth.Per)
		say("Take a memory snapshot (torch.cuda.memory._record_memory_history, then _dump_snapshot) of two steps and look for blocks that only the later one has; memplan record lays it beside the prediction.")
	}
	if f := j.Fragmentation; f != nil && f.Share >= fragmented {
		say("%.0f %% of what the allocator reserves holds no tensor. Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; with varying lengths, pad to a few lengths or call torch.cuda.empty_cache() before evaluation.", 100*f.Share)
	}
	if len(j.Advice) == 0 {
		say("Memory does not grow: nothing to do.")
	}
}
