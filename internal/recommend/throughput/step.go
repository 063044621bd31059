package throughput

import (
	"math"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// Step is what a step of the optimizer takes on a rank, in seconds by what
// takes them, and what it does.
type Step struct {
	Products  float64 // arithmetic of products, attention and convolutions
	Traffic   float64 // memory traffic of everything else
	Launch    float64 // kernels too small to hide their start
	Exchange  float64 // communication that computing does not hide
	Offload   float64 // copies to and from the host, and work there
	Optimizer float64 // the update
	Idle      float64 // stages of a pipeline that wait

	ModelFLOPs float64 // of one rank, recomputation left out
	Samples    float64 // of all ranks
	Length     float64 // tokens of a sample
	Ranks      float64
	Peak       float64 // FLOP a second of one card in the job's type
}

// Seconds is the whole step.
func (s *Step) Seconds() float64 {
	return s.Products + s.Traffic + s.Launch + s.Exchange + s.Offload + s.Optimizer + s.Idle
}

// Rate is samples a second, of all ranks.
func (s *Step) Rate() float64 { return s.Samples / s.Seconds() }

// MFU is the model FLOPs utilisation: the share of the card's peak that goes
// into the model's own arithmetic.
func (s *Step) MFU() float64 { return s.ModelFLOPs / s.Seconds() / s.Peak }

// Predict prices a step of a resolved job whose work one rank would do alone is
// the profile's, on cards with these rates.
func Predict(job spec.Job, p *Profile, r Rates) Step {
	t, par := &job.Training, &job.Parallelism
	s := settingOf(job, r)
	micros := float64(max(1, t.GradAccumSteps))
	var step Step
	var backward float64 // seconds of the backward of a micro batch, which hides communication
	p.each(max(1, t.MicroBatchSize), func(k *graph.Kernel) {
		x := s.seconds(k)
		step.Products += micros * x.products
		step.Traffic += micros * x.traffic
		step.Launch += micros * x.launch
		if k.Pass != graph.Forward {
			backward += x.products + x.traffic + x.launch
		}
		if k.Pass != graph.Recomputing {
			step.ModelFLOPs += micros * s.share * k.FLOPs * float64(k.Count)
		}
	})
	stages := float64(max(1, par.Pipeline))
	for _, x := range []*float64{&step.Products, &step.Traffic, &step.Launch, &step.ModelFLOPs} {
		*x /= stages
	}
	backward /= stages
	step.Samples = micros * float64(max(1, t.MicroBatchSize)) * float64(max(1, par.Data))
	step.Length = float64(max(1, t.SequenceLength))
	step.Ranks = float64(par.Ranks())
	step.Peak = peakOf(job, r)
	e := exchange{job: &job, rates: r, micros: micros, backward: backward, compute: (step.Products + step.Traffic + step.Launch) / micros}
	e.total, e.trainable = p.Parameters()
	e.stored, e.trained = p.Stored()
	step.Exchange = e.seconds()
	step.Offload = e.offload()
	step.Optimizer = e.optimizer()
	if stages > 1 {
		step.Idle = bubble(par, micros) * (step.Products + step.Traffic + step.Launch)
	}
	return step
}

// bubble is the share of the time that a stage waits (Narayanan et al. 2021,
// section 2.2): stages less one over micro batches, and a part of that when each
// stage holds several chunks or the weights' gradients fill the gaps.
func bubble(p *spec.Parallelism, micros float64) float64 {
	chunks := float64(max(1, p.VirtualPipeline))
	if p.PipelineSchedule == "zero-bubble" {
		chunks *= 3
	}
	return float64(p.Pipeline-1) / (micros * chunks)
}

// peakOf is the data sheet's rate of the type that most of a job's products
// are in.
func peakOf(job spec.Job, r Rates) float64 {
	switch job.Training.Precision {
	case spec.PrecisionFP32:
		return r.FP32
	case spec.PrecisionTF32:
		return r.TF32
	case spec.PrecisionFP16, spec.PrecisionFP16Mixed:
		return r.FP16
	case spec.PrecisionFP8Mixed:
		return r.FP8
	}
	return r.BF16
}

// Spreads of the parts, as standard deviations of their logarithm: what the
// priors of kernels, links and hosts are worth. Common is what all share, which
// cancels when two jobs on one card are compared.
var spreads = struct{ products, traffic, launch, exchange, offload, optimizer, idle, common float64 }{
	products: 0.12, traffic: 0.20, launch: 0.40, exchange: 0.50, offload: 0.50, optimizer: 0.25, idle: 0.25, common: 0.15,
}

// Span is a low and a high end.
type Span struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// ninety is the half width of a 90 % interval in standard deviations.
const ninety = 1.645

func around(x, sd float64) Span {
	return Span{threeFigures(x * math.Exp(-ninety*sd)), threeFigures(x * math.Exp(ninety*sd))}
}

// threeFigures rounds to what a prior can mean.
func threeFigures(x float64) float64 {
	if !(x > 0) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(x))-2)
	return math.Round(x/unit) * unit
}

// deviations are the parts' shares of the time, each times its spread.
func (s *Step) deviations() [7]float64 {
	all := s.Seconds()
	return [7]float64{
		s.Products / all * spreads.products, s.Traffic / all * spreads.traffic, s.Launch / all * spreads.launch,
		s.Exchange / all * spreads.exchange, s.Offload / all * spreads.offload, s.Optimizer / all * spreads.optimizer, s.Idle / all * spreads.idle,
	}
}

// TokensPerSecond is the range of tokens (samples where they have none) that
// all ranks take in a second.
func (s *Step) TokensPerSecond() Span {
	var sum float64
	for _, d := range s.deviations() {
		sum += d * d
	}
	return around(s.Rate()*s.Length, math.Sqrt(sum+spreads.common*spreads.common))
}

// leastSpread is what two runs of the same job differ by.
const leastSpread = 0.01

// RelativeTo is the range of how many times as fast as another job this one
// takes tokens. What both do alike cancels.
func (s *Step) RelativeTo(o *Step) Span {
	mine, theirs := s.deviations(), o.deviations()
	sum := leastSpread * leastSpread
	for i := range mine {
		sum += (mine[i] - theirs[i]) * (mine[i] - theirs[i])
	}
	return around(s.Rate()*s.Length/(o.Rate()*o.Length), math.Sqrt(sum))
}
