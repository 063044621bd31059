package estimator_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// tiny is a Llama of two layers; its job takes more keys.
func tiny(t testing.TB, training, runtime string) spec.Job {
	t.Helper()
	var j spec.Job
	require.NoError(t, json.Unmarshal(fmt.Appendf(nil, `{"version":1,"model":{"config":{"model_type":"llama","hidden_size":1024,"intermediate_size":2816,"num_hidden_layers":2,
	"num_attention_heads":8,"num_key_value_heads":8,"vocab_size":8192,"tie_word_embeddings":false}},
	"training":{"precision":"bf16","weights_dtype":"bf16","micro_batch_size":2,"sequence_length":512,%s"optimizer":{"name":"adamw","implementation":"foreach","library":"torch"}},
	"runtime":{%s"trainer":"plain"}}`, training, runtime), &j))
	return j
}

// ledger is a plain reckoning of a trace's events: what lives where, in which
// segments.
type ledger struct {
	t                   *testing.T
	blocks              map[int64]estimator.TraceEvent
	segments            map[int64]units.Bytes
	allocated, reserved units.Bytes
	by                  map[string]units.Bytes
}

func (l *ledger) enter(e estimator.TraceEvent) {
	switch e.Action {
	case "alloc":
		require.NotContains(l.t, l.blocks, e.Address, "%+v", e)
		require.True(l.t, l.backed(e), "no segment behind %+v", e)
		l.blocks[e.Address] = e
		l.allocated += e.Block
		l.by[e.Category] += e.Bytes
	case "free":
		made := l.blocks[e.Address]
		require.Equal(l.t, made.Bytes, e.Bytes, "%+v", e)
		require.Equal(l.t, made.Block, e.Block)
		delete(l.blocks, e.Address)
		l.allocated -= e.Block
		l.by[e.Category] -= e.Bytes
	case "change_category":
		l.by[e.FromCategory] -= e.Bytes
		l.by[e.Category] += e.Bytes
	case "segment_alloc", "segment_map":
		l.segments[e.Address] = e.Bytes
		l.reserved += e.Bytes
	case "segment_free", "segment_unmap":
		require.Equal(l.t, l.segments[e.Address], e.Bytes, "%+v", e)
		delete(l.segments, e.Address)
		l.reserved -= e.Bytes
	}
	require.Equal(l.t, l.allocated, e.Allocated, "%+v", e)
	require.Equal(l.t, l.reserved, e.Reserved, "%+v", e)
}

// backed says that the pages behind a block come from the driver.
func (l *ledger) backed(e estimator.TraceEvent) bool {
	at, end := e.Address, e.Address+int64(e.Block)
	for at < end {
		next := at
		for from, size := range l.segments {
			if from <= at && at < from+int64(size) {
				next = from + int64(size)
			}
		}
		if next == at {
			return false
		}
		at = next
	}
	return true
}

// disjoint fails where two living blocks overlap.
func (l *ledger) disjoint() {
	for a, e := range l.blocks {
		for b := range l.blocks {
			require.False(l.t, a < b && b < a+int64(e.Block), "%x and %x overlap", a, b)
		}
	}
}

func TestTraceIsTheAnswersRun(t *testing.T) {
	for _, test := range []struct {
		name, training, runtime string
	}{
		{name: "plain loop"},
		{name: "accumulation renames storages", training: `"gradient_accumulation_steps":6,`},
		{name: "checkpointing", training: `"activation_checkpointing":{"mode":"full"},`},
		{name: "expandable segments", runtime: `"allocator":{"expandable_segments":true},`},
		{name: "mixed precision", training: `"precision":"bf16-mixed","weights_dtype":"fp32",`},
	} {
		t.Run(test.name, func(t *testing.T) {
			job := tiny(t, test.training, test.runtime)
			est, err := estimator.Run(job, a100, prior)
			require.NoError(t, err)
			rec, err := estimator.Trace(job, a100, prior)
			require.NoError(t, err)

			l := &ledger{t: t, blocks: map[int64]estimator.TraceEvent{}, segments: map[int64]units.Bytes{}, by: map[string]units.Bytes{}}
			var allocated, reserved units.Bytes
			marks := map[string]int{}
			timeline := est.Timeline
			for e := range rec.Events() {
				l.enter(e)
				allocated, reserved = max(allocated, e.Allocated), max(reserved, e.Reserved)
				if e.Action == "mark" {
					l.disjoint()
					marks[e.Phase+"/"+e.Part]++
				}
				if e.Action == "alloc" || e.Action == "free" {
					require.NotEmpty(t, e.Op, "%+v", e)
					if len(timeline) > 0 && timeline[0].Event == e.Event {
						requireSameMoment(t, timeline[0], e, l.by)
						timeline = timeline[1:]
					}
				}
			}
			require.Empty(t, timeline, "the events the timeline counts are the trace's")
			require.Equal(t, slices.MaxFunc(est.Timeline, func(a, b estimator.Moment) int { return cmp.Compare(a.Allocated, b.Allocated) }).Allocated, allocated)
			// Later steady steps, which the trace leaves out, may find other
			// blocks free and leave more slack in them.
			require.LessOrEqual(t, allocated, est.Peak.Allocated)
			require.InEpsilon(t, float64(est.Peak.Allocated), float64(allocated), 0.01)
			require.InEpsilon(t, float64(est.Peak.Reserved), float64(reserved), 0.05)
			for _, part := range []string{"load/", "first_step/forward", "first_step/optimizer", "steady_step/backward", "steady_step/optimizer"} {
				require.Positive(t, marks[part], part)
			}
		})
	}
}

// requireSameMoment compares a point of the timeline with the trace.
func requireSameMoment(t *testing.T, want estimator.Moment, got estimator.TraceEvent, by map[string]units.Bytes) {
	t.Helper()
	require.Equal(t, want.Phase, got.Phase)
	require.Equal(t, want.Part, got.Part)
	require.Equal(t, want.Module, got.Module)
	require.Equal(t, want.Allocated, got.Allocated)
	require.Equal(t, want.Reserved, got.Reserved)
	for _, s := range want.ByCategory {
		if s.Category != "rounding" {
			require.Equal(t, s.Bytes, by[s.Category], "%s at event %d", s.Category, got.Event)
		}
	}
}

// Where the card gives less than the cache would like, the trace shows the
// segments going back, as the answer counts them.
func TestTraceUnderTheCardsCapacity(t *testing.T) {
	job, card := tiny(t, "", ""), a100
	free, err := estimator.Run(job, card, prior)
	require.NoError(t, err)
	card.Total = free.Peak.Required
	est, err := estimator.Run(job, card, prior)
	require.NoError(t, err)
	require.Less(t, est.Peak.Reserved, free.Peak.Reserved, "the job has a cache to give up")
	rec, err := estimator.Trace(job, card, prior)
	require.NoError(t, err)
	require.Equal(t, card.Total-prior.Context.Mean, rec.Allocator.Capacity)
	released := 0
	for e := range rec.Events() {
		require.LessOrEqual(t, e.Reserved, rec.Allocator.Capacity)
		if e.Action == "segment_free" {
			released++
		}
	}
	require.Positive(t, released)
}

func TestTraceEndsWhenItsReaderDoes(t *testing.T) {
	rec, err := estimator.Trace(tiny(t, "", ""), a100, prior)
	require.NoError(t, err)
	for _, stop := range []int{1, 2, 100} {
		n := 0
		for range rec.Events() {
			if n++; n == stop {
				break
			}
		}
		require.Equal(t, stop, n)
	}
}

func TestTraceRefusesWhatRunRefuses(t *testing.T) {
	job := tiny(t, "", "")
	job.Model.Config["model_type"] = "unheard-of"
	_, wanted := estimator.Run(job, a100, prior)
	_, err := estimator.Trace(job, a100, prior)
	require.NotEmpty(t, fault.FieldsOf(err))
	require.Equal(t, wanted, err)
}
