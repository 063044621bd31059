package planner

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"memplan/internal/calibrate"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// forceFresh is how long another replica may answer by a calibration that was
// retired meanwhile.
const forceFresh = 5 * time.Second

// inForce is the calibrations that answers are made by. One that was asked for
// by name must be for the job's card; of those in force the nearest is taken, or
// none.
type inForce struct {
	key   string // tells apart what would be answered differently
	fits  []*Calibration
	named bool
}

// force keeps what is in force from one answer to the next.
type force struct {
	mu   sync.Mutex
	read time.Time // zero: again
	last inForce
}

// By is the planner that answers by one calibration, whatever its state, in
// place of those in force; by the priors alone for "prior". It fails with
// fault.NotFound.
func (p *Planner) By(ctx context.Context, calibration string) (*Planner, error) {
	view := *p
	switch calibration {
	case "":
		return p, nil
	case priorCalibration:
		view.force = &force{last: inForce{key: priorCalibration}}
	default:
		c, err := p.Calibration(ctx, calibration)
		if err != nil {
			return nil, err
		}
		view.force = &force{last: inForce{key: c.ID, fits: []*Calibration{c}, named: true}}
	}
	view.by = calibration
	return &view, nil
}

// inForce is what answers are made by just now.
func (p *Planner) inForce(ctx context.Context) (inForce, error) {
	if p.store == nil || p.by != "" {
		return p.force.last, nil
	}
	p.force.mu.Lock()
	defer p.force.mu.Unlock()
	if now := p.now(); p.force.read.IsZero() || now.Sub(p.force.read) > forceFresh {
		records, err := p.store.ListCalibrations(ctx, CalibrationQuery{CalibrationFilter: CalibrationFilter{State: Active, Limit: 1000}})
		if fault.KindOf(err) == fault.Unavailable {
			return p.force.last, nil // answers name what they were made by, and go on
		}
		if err != nil {
			return inForce{}, err
		}
		var next inForce
		for _, r := range records {
			c, err := decodeCalibration(r)
			if err != nil {
				return inForce{}, err
			}
			next.fits = append(next.fits, c)
			next.key += c.ID + " "
		}
		p.force.last, p.force.read = next, now
	}
	return p.force.last, nil
}

// changed makes the next answer look again.
func (p *Planner) changed() {
	p.force.mu.Lock()
	p.force.read = time.Time{}
	p.force.mu.Unlock()
}

func decodeCalibration(r CalibrationRecord) (*Calibration, error) {
	var c Calibration
	if err := json.Unmarshal(r.Document, &c); err != nil {
		return nil, fault.Wrap(fault.Internal, "planner: decode calibration "+r.ID, err)
	}
	c.State = r.State
	return &c, nil
}

// calibrate puts the posterior that is for the job's card and framework in the
// place of the priors.
func (r *prepared) calibrate(f inForce) error {
	c := f.of(r.device, softwareOf(r.job.Runtime, r.newest))
	if c == nil {
		if f.named {
			one := f.fits[0]
			return fault.New(fault.Conflict, "calibration %s is for %s with %s %s, not for this job", one.ID, one.GPU, one.Framework.Name, one.Framework.Version)
		}
		return nil
	}
	fit, group, co := c.fit(), groupOf(r.job), &r.coefficients
	nccl := float64(co.NCCL.Mean)
	terms := [4]calibrate.Sum{
		{calibrate.Context: 1}, {calibrate.NCCL: nccl}, {calibrate.ConvWorkspace: 1}, calibrate.BiasIn(group),
	}
	var mean, sd [4]float64
	for i, a := range terms {
		for j, b := range terms {
			co.Joint[i][j] = fit.Between(a, b)
		}
		mean[i], sd[i] = fit.Mean(a), math.Sqrt(co.Joint[i][i])
	}
	source := "calibration " + c.ID
	co.Calibration, co.Modules = c.ID, spec.Modules{}
	co.Context = spec.Coefficient{Name: calibrate.Context, Mean: units.Bytes(max(0, mean[0])), SD: units.Bytes(sd[0]), Source: source}
	co.NCCL = spec.Coefficient{Name: calibrate.NCCL, Mean: units.Bytes(max(0, mean[1])), SD: units.Bytes(sd[1]), Source: source}
	co.ConvWorkspace = spec.Ratio{Name: calibrate.ConvWorkspace, Mean: max(0, mean[2]), SD: sd[2], Source: source}
	co.EngineBias = spec.Ratio{Name: calibrate.EngineBias, Mean: mean[3], SD: sd[3], Source: source}
	co.CacheError = 0
	r.widen(fit.Error(group))
	return nil
}

// of is the calibration for a card and framework: one of the card before one of
// its architecture.
func (f inForce) of(d spec.Device, s Software) *Calibration {
	for _, gpu := range []string{d.Key, d.Architecture} {
		i := slices.IndexFunc(f.fits, func(c *Calibration) bool { return gpu != "" && c.GPU == gpu && c.Framework == s })
		if i >= 0 {
			return f.fits[i]
		}
	}
	return nil
}

// softwareOf is the framework a calibration is for: to the minor version, for
// patches change no sizes.
func softwareOf(r spec.Runtime, newest string) Software {
	s := Software{Name: cmp.Or(r.Framework, "pytorch"), Version: cmp.Or(r.FrameworkVersion, newest)}
	parts := strings.SplitN(s.Version, ".", 3)
	if len(parts) > 1 {
		s.Version = parts[0] + "." + parts[1]
	}
	return s
}
