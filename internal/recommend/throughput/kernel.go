package throughput

import (
	"math"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// setting is what of a job changes how fast its kernels run.
type setting struct {
	rates    Rates
	tf32     bool // fp32 products may be rounded to tf32
	fp8      bool // linear layers multiply in fp8
	rowwise  bool // with a scale for each row: an exponent and a maximum more
	compiled bool
	last     bool    // images lie with channels last
	share    float64 // of the kernels' work that a rank does: 1 / (tensor × context)
	light    float64 // of elementwise work, which tensor parallelism divides only with sequence parallelism
}

func settingOf(job spec.Job, r Rates) setting {
	t, p := &job.Training, &job.Parallelism
	s := setting{
		rates: r, tf32: t.Precision == spec.PrecisionTF32, fp8: t.Precision == spec.PrecisionFP8Mixed,
		compiled: t.Compile, last: t.MemoryFormat == "channels_last" || t.MemoryFormat == "channels_last_3d",
	}
	s.rowwise = t.FP8 != nil && t.FP8.Recipe != "" && t.FP8.Recipe != "tensorwise"
	tensor, context := float64(max(1, p.Tensor)), float64(max(1, p.Context))
	s.share, s.light = 1/(tensor*context), 1/(tensor*context)
	if !p.SequenceParallel {
		s.light = (0.5 + 0.5/tensor) / context
	}
	return s
}

// Seconds that a kernel takes at least: its start, and in eager mode what
// Python and the dispatcher take to launch it, where the card waits for them.
const (
	leastKernel  = 2.5e-6
	launchEager  = 6e-6
	streamed     = 0.85 // share of the memory's bandwidth that kernels reach
	fusedTraffic = 0.45 // of elementwise traffic is left when a compiler fuses it
)

// taken is the seconds of one kernel, by what bounds them.
type taken struct{ products, traffic, launch float64 }

// seconds is a roofline: the slower of arithmetic and traffic, and no less than
// a launch.
func (s *setting) seconds(k *graph.Kernel) taken {
	least := launchEager
	if s.compiled {
		least = leastKernel
	}
	n := float64(k.Count)
	if k.Kind == graph.Moves {
		t := k.Bytes * s.light / (streamed * s.rates.Bandwidth)
		if s.compiled {
			t *= fusedTraffic
			least *= fusedTraffic
		}
		if t < least {
			return taken{launch: n * least}
		}
		return taken{traffic: n * t}
	}
	traffic := k.Bytes * s.share / (streamed * s.rates.Bandwidth)
	t := k.FLOPs * s.share / s.rate(k)
	if s.fp8 && k.Kind == graph.Multiplies && k.Batch == 1 {
		traffic += s.casts(k)
		t += s.casts(k)
	}
	switch {
	case max(t, traffic) < least:
		return taken{launch: n * least}
	case traffic > t:
		return taken{traffic: n * traffic}
	}
	return taken{products: n * t}
}

// rate is the FLOP a second at which a kernel's arithmetic runs.
func (s *setting) rate(k *graph.Kernel) float64 {
	peak := s.peak(k)
	switch k.Kind {
	case graph.Attends:
		return peak * s.rates.Attention * filling(float64(k.Rows), 128)
	case graph.Convolves:
		return s.convolution(k, peak)
	}
	reach := s.rates.Reach
	if s.fp8 && k.Batch == 1 {
		reach *= 0.85
		if s.rowwise { // kernels of CUTLASS in place of cuBLAS's
			reach *= 0.75
		}
	}
	return peak * reach * s.occupied(k) * filling(float64(k.Inner), 96)
}

// peak is the data sheet's rate for the kernel's type.
func (s *setting) peak(k *graph.Kernel) float64 {
	switch k.DType {
	case graph.F16:
		return s.rates.FP16
	case graph.BF16:
		if s.fp8 && k.Kind == graph.Multiplies && k.Batch == 1 {
			return s.rates.FP8
		}
		return s.rates.BF16
	}
	if s.tf32 || k.Kind == graph.Convolves { // torch.backends.cudnn.allow_tf32 is on by default
		return s.rates.TF32
	}
	return s.rates.FP32
}

// filling is the share of the time that a loop over n spends beyond its
// prologue of about so many turns.
func filling(n, prologue float64) float64 { return n / (n + prologue) }

// tile is the side of the result that a block of a product computes.
const tile = 128

// occupied is the share of the multiprocessors that a product's tiles keep busy:
// the last wave is seldom full.
func (s *setting) occupied(k *graph.Kernel) float64 {
	rows, columns := float64(k.Rows), float64(k.Columns)*s.share
	if k.Rows == 0 || k.Columns == 0 || s.rates.Multiprocessors == 0 {
		return 1
	}
	tiles := max(1, float64(k.Batch)) * math.Ceil(rows/tile) * math.Ceil(columns/tile)
	used := rows * columns / (math.Ceil(rows/tile) * math.Ceil(columns/tile) * tile * tile)
	waves := tiles / s.rates.Multiprocessors
	return max(0.02, used*waves/math.Ceil(waves))
}

// convolution is the rate of a convolution: as a product's where the layout is
// the tensor cores' own, less where images have to be turned first, and little
// where every channel has a filter of its own.
func (s *setting) convolution(k *graph.Kernel, peak float64) float64 {
	half := k.DType != graph.F32
	if k.Batch > 1 && k.Columns <= 4 { // depthwise: no tensor cores
		return s.rates.FP32 * 0.15
	}
	reach := 0.45
	switch {
	case half && !s.last:
		reach = 0.32
	case !half && s.last:
		reach = 0.38
	}
	return peak * reach * filling(float64(k.Inner), 64) * filling(float64(k.Columns), 32) * filling(float64(k.Rows)/tile, s.rates.Multiprocessors)
}

// casts is the seconds of bringing both factors of a product to fp8: a pass for
// the largest value and one for the cast. A compiler joins the first to what
// made the tensor.
func (s *setting) casts(k *graph.Kernel) float64 {
	passes := 5.0
	if s.compiled {
		passes = 3
	}
	if s.rowwise {
		passes++
	}
	numbers := float64(k.Rows*k.Inner)*s.share + float64(k.Inner*k.Columns)*s.share
	return passes * numbers / (streamed * s.rates.Bandwidth)
}
