package estimator

import (
	"cmp"
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

// judge sets the interval and the verdict. conv is the most that the operands of
// a convolution come to.
func (e *Estimate) judge(d spec.Device, co spec.Coefficients, conv units.Bytes) {
	relative := max(leastEngineError, co.EngineError)
	of := func(b units.Bytes, relative float64) spread { return spreadOf(co, conv, b-co.Outside(), relative) }
	required := of(e.Peak.Required, relative)
	r := required.around(e.Peak.Required)
	e.Peak.Interval = Interval{Low: r.Low, High: r.High, Level: 0.90, Of: "required_bytes", Source: cmp.Or(co.Calibration, "prior")}
	e.Peak.ProcessInterval = of(e.Peak.Process, max(relative, co.CacheError)).around(e.Peak.Process)
	usable := d.Usable()
	t := TargetAnswer{GPU: d.Key, Usable: usable, Headroom: usable - e.Peak.Required}
	if t.GPU == "" {
		t.GPU = d.Name
	}
	t.ProbabilityFits = math.Round(required.below(float64(usable-e.Peak.Required))*1e4) / 1e4
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
	switch {
	case w.Part == "" && w.Phase == "load":
		return fmt.Sprintf("Peak while the model loads, at %s.", w.Module)
	case w.Part == "":
		return fmt.Sprintf("Peak while %s.", words(w.Phase))
	case w.Module == "":
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
	case "evaluation":
		return "the model is evaluated"
	case "generation":
		return "the model generates"
	case "checkpoint_save":
		return "a checkpoint is written"
	}
	return phase
}
