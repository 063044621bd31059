package planner_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/store"
	"memplan/internal/units"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is when the tests take place.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// call is what an engine was given.
type call struct {
	job          spec.Job
	device       spec.Device
	coefficients spec.Coefficients
}

// engine stands in for the estimator: it notes its calls and answers by a
// formula for the bytes a job requires, one percent either way.
type engine struct {
	required func(spec.Job) units.Bytes // nil: 10 GiB
	err      error

	mu    sync.Mutex
	calls []call
}

func (e *engine) run(job spec.Job, device spec.Device, c spec.Coefficients) (*estimator.Estimate, error) {
	e.mu.Lock()
	e.calls = append(e.calls, call{job, device, c})
	e.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	required := 10 * units.GiB
	if e.required != nil {
		required = e.required(job)
	}
	est := &estimator.Estimate{
		Version: 1, Engine: estimator.Engine{Version: "test"}, Job: job, Summary: "needs " + required.String(),
		Peak: estimator.Peak{
			Allocated: required - units.GiB, Required: required,
			Interval: estimator.Interval{Low: required / 100 * 99, High: required / 100 * 101},
		},
		Target:      estimator.TargetAnswer{GPU: device.Key, Usable: device.Usable(), Verdict: estimator.Fits},
		Assumptions: []estimator.Assumption{{Path: "training.seed", Why: "any"}, {Path: "training.attention", Value: "sdpa", Decides: true}},
		Warnings:    []estimator.Warning{{Code: "engine"}},
	}
	switch {
	case required > device.Usable():
		est.Target.Verdict = estimator.Exceeds
	case est.Peak.Interval.High > device.Usable():
		est.Target.Verdict = estimator.Tight
	}
	return est, nil
}

func (e *engine) last() call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[len(e.calls)-1]
}

func (e *engine) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.calls)
}

// hub is a planner.Hub made of a function.
type hub func(id string) ([]byte, error)

func (h hub) Config(_ context.Context, id string) ([]byte, error) { return h(id) }

// tables opens the catalogue once: it is read-only.
var tables = sync.OnceValues(catalog.Open)

// newPlanner returns a planner of a configuration over the real catalogue, and
// its engine.
func newPlanner(t testing.TB, c planner.Config) (*planner.Planner, *engine) {
	t.Helper()
	known, err := tables()
	require.NoError(t, err)
	e := &engine{}
	c.Catalog = known
	if c.Engine == nil {
		c.Engine = e.run
	}
	if c.Now == nil {
		c.Now = func() time.Time { return noon }
	}
	return planner.New(c), e
}

func newStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "memplan.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// gpt2 is the smallest job: a model and nothing else.
func gpt2() spec.Job { return spec.Job{Version: 1, Model: spec.Model{ID: "openai-community/gpt2"}} }

func assumption(t *testing.T, est *estimator.Estimate, path string) estimator.Assumption {
	t.Helper()
	for _, a := range est.Assumptions {
		if a.Path == path {
			return a
		}
	}
	require.Failf(t, "no assumption", "%s in %v", path, est.Assumptions)
	return estimator.Assumption{}
}

func warned(est *estimator.Estimate) []string {
	codes := []string{}
	for _, w := range est.Warnings {
		codes = append(codes, w.Code)
	}
	return codes
}

func TestEstimateOrdersWhatItTells(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{})
	job := gpt2()
	job.Runtime.FrameworkVersion = "2.9.1"
	job.Parallelism.PipelineSchedule = "1f1b"
	est, err := p.Estimate(t.Context(), job)
	require.NoError(t, err)
	var paths []string
	for _, a := range est.Assumptions {
		paths = append(paths, a.Path)
	}
	require.Equal(t, []string{"target.gpu", "training.attention", "target.count", "runtime.framework_version", "training.seed"}, paths, "the deciding ones first")
	require.Equal(t, []string{"no_effect", "engine"}, warned(est))
	require.NotEmpty(t, est.Engine.Catalog)
}

func TestEstimateReportsEveryWrongField(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	_, err := p.Estimate(t.Context(), spec.Job{
		Model:       spec.Model{ID: "meta-lama/Llama-3.1-8B-Instrukt"},
		Parallelism: spec.Parallelism{Data: 3},
		Target:      spec.Target{GPU: "A100-SXM4-81GB", Count: 8, Device: "GPU-1"},
	})
	var paths []string
	for _, f := range fault.FieldsOf(err) {
		paths = append(paths, f.Path)
	}
	require.Equal(t, []string{"model.id", "target.device", "target.gpu", "target.count"}, paths)
	require.Zero(t, e.count())
}

func TestEstimatePassesTheEnginesErrorOn(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	e.err = fault.Fields{{Path: "training.precision", Want: "another"}}
	_, err := p.Estimate(t.Context(), gpt2())
	require.Equal(t, e.err, err)
}

func TestPanicIsOneJobsError(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{Engine: func(j spec.Job, d spec.Device, c spec.Coefficients) (*estimator.Estimate, error) {
		if j.Name == "bad" {
			panic("index out of range")
		}
		return (&engine{}).run(j, d, c)
	}})
	good, bad := gpt2(), gpt2()
	bad.Name = "bad"
	outcomes := p.EstimateBatch(t.Context(), []spec.Job{bad, good}, false)
	require.Equal(t, fault.Internal, fault.KindOf(outcomes[0].Err))
	require.ErrorContains(t, outcomes[0].Err, "index out of range")
	require.NoError(t, outcomes[1].Err)
}

func TestEstimateEndsWithItsContext(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.Estimate(ctx, gpt2())
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, e.count())
}

func TestEstimateIsCached(t *testing.T) {
	other := gpt2()
	other.Training.MicroBatchSize = 2
	for _, test := range []struct {
		name    string
		entries int
		jobs    []spec.Job
		want    int // times the engine ran
	}{
		{"the same job once", 0, []spec.Job{gpt2(), gpt2()}, 1},
		{"another job for itself", 0, []spec.Job{gpt2(), other, gpt2(), other}, 2},
		{"switched off", -1, []spec.Job{gpt2(), gpt2()}, 2},
		{"the least recently used leaves first", 1, []spec.Job{gpt2(), other, gpt2()}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, e := newPlanner(t, planner.Config{CacheEntries: test.entries})
			for _, job := range test.jobs {
				est, err := p.Estimate(t.Context(), job)
				require.NoError(t, err)
				require.Equal(t, job.Training.MicroBatchSize, est.Job.Training.MicroBatchSize)
			}
			require.Equal(t, test.want, e.count())
		})
	}
}

func TestErrorsAreNotCached(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	e.err = fault.New(fault.Unavailable, "later")
	_, err := p.Estimate(t.Context(), gpt2())
	require.Error(t, err)
	e.err = nil
	_, err = p.Estimate(t.Context(), gpt2())
	require.NoError(t, err)
}

func TestBatch(t *testing.T) {
	var running, most atomic.Int64
	e := &engine{}
	p, _ := newPlanner(t, planner.Config{Engine: func(j spec.Job, d spec.Device, c spec.Coefficients) (*estimator.Estimate, error) {
		now := running.Add(1)
		for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
		}
		defer running.Add(-1)
		return e.run(j, d, c)
	}})
	jobs := make([]spec.Job, 200)
	for i := range jobs {
		jobs[i] = gpt2()
		jobs[i].Training.MicroBatchSize = i + 1
	}
	jobs[7].Model.ID = "nobody/nothing"
	outcomes := p.EstimateBatch(t.Context(), jobs, false)
	require.Len(t, outcomes, len(jobs))
	for i, o := range outcomes {
		if i == 7 {
			require.Equal(t, fault.Invalid, fault.KindOf(o.Err))
			require.Nil(t, o.Estimate)
			continue
		}
		require.NoError(t, o.Err)
		require.Equal(t, i+1, o.Estimate.Job.Training.MicroBatchSize)
	}
	require.LessOrEqual(t, most.Load(), int64(maxParallel()))
}

func TestBatchHasALimit(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	outcomes := p.EstimateBatch(t.Context(), make([]spec.Job, planner.MaxBatch+1), false)
	require.Len(t, outcomes, planner.MaxBatch+1)
	for _, o := range outcomes {
		require.Equal(t, fault.TooLarge, fault.KindOf(o.Err))
	}
	require.Zero(t, e.count())
}

func TestBatchSaves(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{Store: newStore(t)})
	jobs := make([]spec.Job, 20)
	for i := range jobs {
		jobs[i] = gpt2()
		jobs[i].Name = fmt.Sprint(i)
	}
	for i, o := range p.EstimateBatch(t.Context(), jobs, true) {
		require.NoError(t, o.Err)
		kept, err := p.Saved(t.Context(), o.Estimate.ID)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint(i), kept.Job.Name)
	}
}

func TestReadyCheck(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{})
	require.NoError(t, p.ReadyCheck(t.Context()), "nothing to be ready")

	s, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "memplan.db"))
	require.NoError(t, err)
	p, _ = newPlanner(t, planner.Config{Store: s})
	require.NoError(t, p.ReadyCheck(t.Context()))
	require.NoError(t, s.Close())
	require.Equal(t, fault.Unavailable, fault.KindOf(p.ReadyCheck(t.Context())))
}

func TestTablesAreShown(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{})
	require.Len(t, p.Models("llama 8b", 3), 3)
	require.Greater(t, len(p.GPUs()), 60)
}
