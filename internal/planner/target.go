package planner

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"memplan/internal/catalog"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// defaultGPU is the card meant when the target names none.
const defaultGPU = "A100-SXM4-80GB"

// resolveTarget finds the card, its usable memory and its coefficients.
func (p *Planner) resolveTarget(_ context.Context, r *prepared) error {
	t := r.job.Target
	var wrong fault.Fields
	if t.Device != "" {
		wrong.Add("target.device", t.Device, "target.gpu or target.memory_gib: attached cards are not known here", "")
	}
	prior, err := p.resolveCard(r)
	wrong = append(wrong, fault.FieldsOf(err)...)
	r.device.Other, r.device.Headroom = t.OtherProcessesGiB, t.HeadroomGiB
	if t.Sharing == "time-sliced" && t.OtherProcessesGiB == 0 {
		r.warn("shared_card", "target.other_processes_gib", "the card is time-sliced, and nothing was said of what its other processes hold")
	}
	if err == nil && r.device.Usable() == 0 {
		wrong.Add("target.headroom_gib", t.HeadroomGiB, fmt.Sprintf("with other_processes_gib less than the card's %s", r.device.Total), "0")
	}
	r.warnOfBF16()
	r.coefficients = coefficientsFor(prior, r.job.Parallelism)
	return wrong.Err()
}

// warnOfBF16 tells that a card known to have no bf16 is to compute in it, which
// is also the default where no precision is named.
func (r *prepared) warnOfBF16() {
	precision, c := r.job.Training.Precision, r.device.ComputeCapability
	if c == (spec.Version{}) || hasBF16(r.device) || !strings.Contains(string(cmp.Or(precision, spec.PrecisionBF16Mixed)), "bf16") {
		return
	}
	r.warn("no_bf16", "training.precision", r.device.Name+" has no bf16 arithmetic: PyTorch emulates it, slowly; fp16-mixed is what is used on such cards")
}

// resolveCard fills the device from the catalogue, or from the size alone.
func (p *Planner) resolveCard(r *prepared) (catalog.Context, error) {
	t := &r.job.Target
	if t.GPU == "" && t.MemoryGiB == 0 {
		t.GPU = defaultGPU
		r.assume("target.gpu", defaultGPU, true, "no card was named")
	}
	if t.GPU == "" {
		return p.unknownCard(r)
	}
	g, err := p.catalog.GPU(t.GPU)
	if err != nil {
		if t.MemoryGiB > 0 {
			return p.unknownCard(r)
		}
		return catalog.Context{}, err
	}
	t.GPU = g.Key
	r.device = spec.Device{
		Key: g.Key, Name: g.Name, Vendor: g.Vendor, Architecture: g.Arch,
		ComputeCapability: spec.ParseVersion(g.ComputeCapability), Total: g.Usable,
	}
	if g.Warning != "" {
		r.warn("unmeasured_card", "target.gpu", g.Warning)
		r.widen(engineErrorOther)
	}
	return g.Context, sliceOf(g, r)
}

// sliceOf narrows a known card to its MIG profile, or to the size that the
// user gives for it.
func sliceOf(g catalog.GPU, r *prepared) error {
	t := r.job.Target
	if t.MIGProfile != "" {
		s, err := g.Slice(t.MIGProfile)
		if err != nil {
			return err
		}
		r.device.Total = s.Usable
		r.device.Name = g.Name + " MIG " + s.Profile
	}
	if t.MemoryGiB > 0 {
		r.assume("target.memory_gib", int64(t.MemoryGiB), false,
			fmt.Sprintf("taken in place of the catalogue's %s for %s", r.device.Total, g.Key))
		r.device.Total = t.MemoryGiB
	}
	return nil
}

// unknownCard describes a card by its memory, and by its compute capability
// where that is given.
func (p *Planner) unknownCard(r *prepared) (catalog.Context, error) {
	t := r.job.Target
	r.device = spec.Device{
		Name: cmp.Or(t.GPU, fmt.Sprintf("a card with %s", t.MemoryGiB)), Vendor: "other", Total: t.MemoryGiB,
		ComputeCapability: spec.ParseVersion(t.ComputeCapability),
	}
	if t.MIGProfile != "" {
		return catalog.Context{}, fault.Fields{{Path: "target.mig_profile", Got: t.MIGProfile, Want: "no profile: the card is not in the catalogue"}}
	}
	if prior, ok := p.catalog.ContextOf(t.ComputeCapability); ok {
		r.device.Vendor = "nvidia"
		r.warn("unknown_card", "target.memory_gib", "the card is known by its memory and compute capability only: its context was taken from cards of that capability")
		return prior, nil
	}
	r.widen(engineErrorOther)
	r.warn("unknown_card", "target.memory_gib", "the card is known by its memory only: context, workspaces and kernel choice were not measured; the interval is wide")
	return unknownContext(p.catalog.GPUs()), nil
}
