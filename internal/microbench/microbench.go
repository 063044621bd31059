package microbench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"memplan/internal/fault"
	"memplan/internal/gpu/cuda"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// Config is how probes run. The zero value runs them with python3.
type Config struct {
	Python  string          // with PyTorch; "": python3
	CUDA    string          // path of libcuda; "": the loader finds it
	Devices planner.Devices // tells who uses a card, before a probe and while it runs; nil: what is told with it
	Env     []string        // for the processes of probes, beside this process's own
}

// Bencher runs probes. It is planner.Prober.
type Bencher struct{ config Config }

var _ planner.Prober = (*Bencher)(nil)

// New returns a bencher.
func New(c Config) *Bencher {
	if c.Python == "" {
		c.Python = "python3"
	}
	return &Bencher{c}
}

// Run implements planner.Prober.
func (b *Bencher) Run(ctx context.Context, d planner.Device, name string, o planner.ProbeOptions) (planner.ProbeResult, error) {
	p, ok := probeOf(name)
	if !ok {
		return planner.ProbeResult{}, fault.New(fault.NotFound, "there is no probe %q", name)
	}
	d, err := b.now(ctx, d)
	if err != nil {
		return planner.ProbeResult{}, err
	}
	if err := idleEnough(d); err != nil && !o.Force {
		return planner.ProbeResult{}, err
	}
	begin := time.Now()
	r := planner.ProbeResult{Probe: name, State: planner.ProbeDone}
	if p.script == "" {
		b.askDriver(d, &r)
	} else {
		ctx, cancel := context.WithTimeout(ctx, o.Limit)
		b.spawn(ctx, d, p, &r)
		cancel()
	}
	r.Seconds = time.Since(begin).Seconds()
	return r, nil
}

// now is a card as it is at this moment.
func (b *Bencher) now(ctx context.Context, d planner.Device) (planner.Device, error) {
	if b.config.Devices == nil {
		return d, nil
	}
	all, err := b.config.Devices.List(ctx)
	if err != nil {
		return d, err
	}
	for _, x := range all {
		if x.ID == d.ID {
			x.GPU = d.GPU // the catalogue's key, which drivers do not know
			return x, nil
		}
		for _, s := range x.MIG.Slices {
			if s.ID == d.ID {
				d.Memory = s.Memory
				return d, nil
			}
		}
	}
	return d, fault.New(fault.Unavailable, "the card is gone: the driver no longer lists it")
}

// What a card must have left for a probe, and how busy it may be.
const (
	reserve     = 10 // a tenth stays free
	leastFree   = 2 * units.GiB
	busyPercent = 20
)

// idleEnough fails with fault.Conflict where others use the card: they would be
// disturbed, and what is measured would be theirs too.
func idleEnough(d planner.Device) error {
	var who []string
	for _, p := range d.Processes {
		if p.Used == nil || *p.Used > 0 {
			who = append(who, strings.TrimSpace(fmt.Sprintf("%s %d", p.Name, p.PID)))
		}
	}
	switch {
	case len(who) > 0:
		return fault.New(fault.Conflict, "the card is used by others (%s): wait for them, or force it", strings.Join(who, ", "))
	case d.Utilisation != nil && *d.Utilisation > busyPercent:
		return fault.New(fault.Conflict, "the card is %d %% busy: wait, or force it", *d.Utilisation)
	case limitOf(d) < leastFree:
		return fault.New(fault.Conflict, "%s of the card are free: a probe needs %s beside the tenth that stays free", d.Memory.Free, leastFree)
	}
	return nil
}

// limitOf is what a probe may take of a card.
func limitOf(d planner.Device) units.Bytes { return d.Memory.Free - d.Memory.Total/reserve }

// askDriver is the probe of the first tier.
func (b *Bencher) askDriver(d planner.Device, r *planner.ProbeResult) {
	driver, err := cuda.Open(b.config.CUDA)
	if err == nil {
		err = measureDriver(driver, d, r)
	}
	switch {
	case errors.Is(err, cuda.ErrAbsent):
		r.State, r.Error = planner.ProbeSkipped, "libcuda.so.1 cannot be loaded"
	case errors.Is(err, cuda.ErrOutOfMemory):
		r.State, r.Error = planner.ProbeOOM, "the card has no room for a context"
	case err != nil:
		r.State, r.Error = planner.ProbeFailed, err.Error()
	}
}

func measureDriver(driver *cuda.Driver, d planner.Device, r *planner.ProbeResult) error {
	cards, err := driver.Devices()
	if err != nil {
		return err
	}
	for _, c := range cards {
		if c.UUID != d.ID {
			continue
		}
		f, err := driver.Measure(c.Index)
		if err != nil {
			return err
		}
		for _, x := range []struct {
			name  string
			value units.Bytes
		}{
			{"total", f.Total},
			{"bare context", f.Total - f.FreeWithin - d.Memory.Used},
			{"granularity.minimum", f.Minimum},
			{"granularity.recommended", f.Recommended},
		} {
			r.Figures = append(r.Figures, planner.Figure{Name: x.name, Value: float64(x.value), Unit: "bytes"})
		}
		return nil
	}
	r.State, r.Error = planner.ProbeSkipped, "the CUDA driver does not list this card: CUDA_VISIBLE_DEVICES may hide it"
	return nil
}
