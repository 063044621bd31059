package estimator

import (
	"fmt"
	"math"

	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// leastEngineError is the smallest relative spread the engine claims for its
// own simulation, whatever it matched.
const leastEngineError = 0.01

// convolutionError is the relative spread where cuDNN's workspaces are not
// known. Prior: published peaks of ResNets, VGG, EfficientNet and ViT on real
// cards (itu-rad/GPUMemNet) lie 7 % to 53 % above an estimate without them, the
// more the smaller the job.
const convolutionError = 0.20

// ninety is the half width of a 90 % interval in standard deviations.
const ninety = 1.6449

// judge sets the interval and the verdict. The spread of required joins the
// coefficients' own and the engine's relative error, as independent normals.
func (e *Estimate) judge(d spec.Device, co spec.Coefficients) {
	relative := max(leastEngineError, co.EngineError)
	simulated := float64(e.Peak.Required - co.Context.Mean - co.NCCL.Mean)
	sd := math.Sqrt(square(float64(co.Context.SD)) + square(float64(co.NCCL.SD)) + square(relative*simulated))
	around := func(b units.Bytes) Range {
		half := units.Bytes(ninety * sd)
		return Range{max(0, b-half), b + half}
	}
	source := co.Calibration
	if source == "" {
		source = "prior"
	}
	r := around(e.Peak.Required)
	e.Peak.Interval = Interval{Low: r.Low, High: r.High, Level: 0.90, Of: "required_bytes", Source: source}
	e.Peak.ProcessInterval = around(e.Peak.Process)
	usable := d.Usable()
	t := TargetAnswer{GPU: d.Key, Usable: usable, Headroom: usable - e.Peak.Required}
	if t.GPU == "" {
		t.GPU = d.Name
	}
	t.ProbabilityFits = normal(float64(usable-e.Peak.Required) / max(sd, 1))
	switch {
	case e.Peak.Interval.High <= usable:
		t.Verdict = Fits
	case e.Peak.Required <= usable:
		t.Verdict = Tight
	default:
		t.Verdict = Exceeds
	}
	e.Target = t
}

func square(x float64) float64 { return x * x }

// normal is the standard normal distribution function, to four digits.
func normal(z float64) float64 { return math.Round(0.5*math.Erfc(-z/math.Sqrt2)*1e4) / 1e4 }

// summarise writes the sentence of every door.
func (e *Estimate) summarise(d spec.Device) {
	name := d.Name
	if name == "" {
		name = "the card"
	}
	i := e.Peak.Interval
	needs := fmt.Sprintf("needs %s (%.1f to %.1f)", gib(e.Peak.Required), i.Low.GiB(), i.High.GiB())
	gives := fmt.Sprintf("%s gives %.1f", name, e.Target.Usable.GiB())
	var head string
	switch e.Target.Verdict {
	case Fits:
		head = fmt.Sprintf("Fits: %s, %s.", needs, gives)
	case Tight:
		head = fmt.Sprintf("Tight: %s, %s; it fits with probability %.0f %%.", needs, gives, 100*e.Target.ProbabilityFits)
	default:
		head = fmt.Sprintf("Does not fit: %s, %s.", needs, gives)
	}
	e.Summary = head + " " + e.Peak.At.sentence()
}

func gib(b units.Bytes) string { return fmt.Sprintf("%.1f GiB", b.GiB()) }

func (w Where) sentence() string {
	if w.Part == "" {
		return fmt.Sprintf("Peak while the model loads, at %s.", w.Module)
	}
	if w.Module == "" {
		return fmt.Sprintf("Peak in the %s of the %s.", w.Part, words(w.Phase))
	}
	return fmt.Sprintf("Peak in the %s of %s.", w.Part, w.Module)
}

func words(phase string) string {
	switch phase {
	case "first_step":
		return "first step"
	case "steady_step":
		return "step"
	}
	return phase
}
