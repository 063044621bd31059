package planner

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"memplan/internal/calibrate"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// Observed is a measured run beside its estimate by the priors alone: what a
// fit is made of.
type Observed struct {
	Run          wire.Run
	Estimate     *estimator.Estimate
	Architecture string                  // of the card
	Observations []calibrate.Observation // one of the process, or of what it reserved
	Priors       []calibrate.Coefficient // of the coefficients that stand in them
	prepared     *prepared
}

// Observe answers a measured run's job by the priors and lays the answer beside
// what was measured. Its errors are those of Estimate.
func (p *Planner) Observe(ctx context.Context, run wire.Run) (*Observed, error) {
	r, err := p.lookUp(ctx, run.Job)
	if err != nil {
		return nil, err
	}
	est, err := p.run(r)
	if err != nil {
		return nil, err
	}
	o := &Observed{Run: run, Estimate: est, Architecture: r.device.Architecture, Priors: fitPriors(r.coefficients)}
	m, ok := fitted(run)
	if !ok {
		return o, nil
	}
	x := calibrate.Observation{
		Run: run.ID, Ladder: ladderOf(run.Job), Group: groupOf(r.job),
		Measured: float64(m.Bytes), Rounding: float64(m.Rounding), Terms: map[string]float64{},
	}
	with := reservedIn(est, m.Phase)
	without, err := p.withoutWorkspace(r, est, m.Phase)
	if err != nil {
		return nil, err
	}
	if mean := r.coefficients.ConvWorkspace.Mean; mean != 0 && with != without {
		x.Terms[calibrate.ConvWorkspace] = float64(with-without) / mean
	}
	x.Simulated = float64(without)
	if m.Metric == "process" {
		x.Terms[calibrate.Context] = 1
		if b := r.coefficients.NCCL.Mean; b > 0 {
			x.Terms[calibrate.NCCL] = float64(b)
		}
	}
	o.Observations = []calibrate.Observation{x}
	return o, nil
}

// fitted is the figure of a run that a fit is made of: the whole process, or
// else what the allocator reserved.
func fitted(run wire.Run) (wire.Measurement, bool) {
	for _, metric := range []string{"process", "reserved"} {
		for _, m := range run.Measured {
			if m.Metric == metric && m.Relation == "equals" && (m.Rank == "" || m.Rank == "0") && m.Phase != "load" {
				return m, true
			}
		}
	}
	return wire.Measurement{}, false
}

// withoutWorkspace is what the allocator reserves when convolutions take no
// workspace.
func (p *Planner) withoutWorkspace(r *prepared, est *estimator.Estimate, phase string) (units.Bytes, error) {
	if !slices.ContainsFunc(est.Warnings, func(w estimator.Warning) bool { return w.Code == "convolutions" }) {
		return reservedIn(est, phase), nil
	}
	bare := *r
	bare.coefficients.ConvWorkspace = spec.Ratio{}
	without, err := p.run(&bare)
	if err != nil {
		return 0, err
	}
	return reservedIn(without, phase), nil
}

// reservedIn is what the allocator reserves in a phase; for none, in a step.
func reservedIn(est *estimator.Estimate, phase string) units.Bytes {
	most := units.Bytes(0)
	for _, ph := range est.Phases {
		if phase == "" && ph.Name != "load" || phase == ph.Name {
			most = max(most, ph.PeakReserved)
		}
	}
	return most
}

// fitPriors are the coefficients of a job on a card as a fit takes them: the
// context with the modules that may be loaded at once, NCCL as a share of its
// prior.
func fitPriors(c spec.Coefficients) []calibrate.Coefficient {
	q, m := c.Modules.Probability, float64(c.Modules.Mean)
	sd := math.Sqrt(square(float64(c.Context.SD)) + q*square(float64(c.Modules.SD)) + q*(1-q)*m*m)
	return []calibrate.Coefficient{
		{Name: calibrate.Context, Unit: "bytes", Prior: calibrate.Belief{Mean: float64(c.Context.Mean) + q*m, SD: sd, Source: c.Context.Source + "; " + c.Modules.Source}},
		{Name: calibrate.NCCL, Unit: "ratio", Prior: calibrate.Belief{Mean: 1, SD: 0.5, Source: ncclSource}},
		{Name: calibrate.ConvWorkspace, Unit: "ratio", Prior: calibrate.Belief{Mean: c.ConvWorkspace.Mean, SD: c.ConvWorkspace.SD, Source: c.ConvWorkspace.Source}},
	}
}

func square(x float64) float64 { return x * x }

// groupOf names the jobs that share an error of the engine: family,
// implementation, sharding, and whether they are compiled.
func groupOf(job spec.Job) string {
	family := "unknown"
	switch m := job.Model; {
	case m.Config["model_type"] != nil:
		family = fmt.Sprint(m.Config["model_type"])
	case m.Config["_class_name"] != nil:
		family = fmt.Sprint(m.Config["_class_name"])
	case m.ID != "":
		_, name, _ := strings.Cut(m.ID, "/")
		family = strings.TrimRight(strings.ToLower(cmp.Or(name, m.ID)), "0123456789")
		family, _, _ = strings.Cut(family, "_")
		family = strings.TrimRight(family, "0123456789")
	case m.Architecture["family"] != nil:
		family = fmt.Sprint(m.Architecture["family"])
	}
	group := []string{family, cmp.Or(job.Model.Implementation, implementationOf(job.Model)), cmp.Or(job.Parallelism.Sharding, "none")}
	if job.Training.Compile {
		group = append(group, "compiled")
	}
	return strings.Join(group, " ")
}

// implementationOf is the library that a model's id names.
func implementationOf(m spec.Model) string {
	if library, _, ok := strings.Cut(m.ID, "/"); ok && (library == "timm" || library == "torchvision") {
		return library
	}
	return "hf"
}

// ladderOf names the jobs that differ only in size: in micro batch, lengths,
// images and cards. They err alike, and are held out together.
func ladderOf(job spec.Job) string {
	job.Name, job.Labels = "", nil
	job.Parallelism, job.Target = spec.Parallelism{}, spec.Target{}
	t := &job.Training
	t.MicroBatchSize, t.GradAccumSteps, t.SequenceLength, t.ImageSize = 0, 0, 0, nil
	text, err := json.Marshal(job)
	if err != nil {
		return "unknown"
	}
	return string(text)
}
