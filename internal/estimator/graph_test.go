package estimator_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// graphOf reads a graph that memplan_export.py wrote of a module in
// testdata/graphs/modules.py.
func graphOf(t require.TestingT, name string) map[string]any {
	data, err := os.ReadFile(filepath.Join("testdata", "graphs", name+".json"))
	require.NoError(t, err)
	var g map[string]any
	require.NoError(t, json.Unmarshal(data, &g))
	return g
}

func graphJob(g map[string]any, batch int, p spec.Precision) spec.Job {
	var job spec.Job
	job.Model.Graph = g
	job.Training.MicroBatchSize, job.Training.Precision = batch, p
	return job
}

func codes(e *estimator.Estimate) (all []string) {
	for _, w := range e.Warnings {
		all = append(all, w.Code)
	}
	return all
}

// TestPeaksOfGraphs compares with the same modules run by torch 2.15 on its real
// allocator and a driver whose kernels do nothing; in the modules' programs
// without convolutions under autocast, whose workspaces are the card's to
// choose, every event was the same too.
func TestPeaksOfGraphs(t *testing.T) {
	type peaks [3]units.Bytes // load, first step, steady step
	tests := []struct {
		name                string
		graph               string
		batch               int
		precision           spec.Precision
		allocated, reserved peaks
	}{
		{"mlp", "mlp", 16, "fp32", peaks{79360, 8700416, 8859136}, peaks{2097152, 23068672, 23068672}},
		{"mlp under autocast", "mlp", 16, "bf16-mixed", peaks{79360, 8664064, 8822784}, peaks{2097152, 23068672, 23068672}},
		{"convolutions", "convnet", 8, "fp32", peaks{466432, 30906368, 31836160}, peaks{2097152, 50331648, 52428800}},
		{"transformer", "transformer", 8, "fp32", peaks{3712000, 34486272, 41910272}, peaks{4194304, 44040192, 52428800}},
		{"transformer under autocast", "transformer", 8, "bf16-mixed", peaks{3712000, 26408960, 33832960}, peaks{4194304, 41943040, 50331648}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e, err := estimator.Run(graphJob(graphOf(t, test.graph), test.batch, test.precision), a100, prior)
			require.NoError(t, err)
			var allocated, reserved peaks
			for i, p := range e.Phases[:3] {
				allocated[i], reserved[i] = p.PeakAllocated, p.PeakReserved
			}
			require.Equal(t, test.allocated, allocated)
			require.Equal(t, test.reserved, reserved)
			require.NotContains(t, codes(e), "unknown_operation")
		})
	}
}

func TestGraphEqualsTheFamilysProgram(t *testing.T) {
	for _, precision := range []spec.Precision{"fp32", "bf16-mixed", "fp16"} {
		exported := graphJob(graphOf(t, "resnet18"), 8, precision)
		listed := exported
		listed.Model = spec.Model{ID: "torchvision/resnet18"}
		a, err := estimator.Run(exported, a100, prior)
		require.NoError(t, err)
		b, err := estimator.Run(listed, a100, prior)
		require.NoError(t, err)
		require.Equal(t, b.Phases, a.Phases, precision)
		require.Equal(t, b.Peak.Tensor, a.Peak.Tensor)
		require.Equal(t, b.Parameters, a.Parameters)
		require.Equal(t, b.Peak.At, a.Peak.At)
	}
}

func TestGraphUnderWhatIsPutOnModules(t *testing.T) {
	run := func(change func(j *spec.Job)) *estimator.Estimate {
		job := graphJob(graphOf(t, "transformer"), 8, "bf16-mixed")
		change(&job)
		e, err := estimator.Run(job, a100, prior)
		require.NoError(t, err)
		return e
	}
	plain := run(func(*spec.Job) {})
	tests := []struct {
		name   string
		change func(j *spec.Job)
		less   func(e *estimator.Estimate) bool
	}{
		{"blocks are recomputed", func(j *spec.Job) { j.Training.Checkpointing.Mode = "full" }, func(e *estimator.Estimate) bool { return e.Peak.Allocated < plain.Peak.Allocated }},
		{"adapters on linear layers", func(j *spec.Job) {
			j.Training.Method, j.Training.Adapter = "lora", &spec.Adapter{Rank: 4, TargetModules: spec.Targets{Names: []string{"qkv", "proj"}}}
		}, func(e *estimator.Estimate) bool { return e.Parameters.Trainable == 4*4*(128+384+128+128) }},
		{"two ranks", func(j *spec.Job) { j.Parallelism.Data, j.Parallelism.Sharding, j.Target.Count = 2, "ddp", 2 }, func(e *estimator.Estimate) bool { return e.Peak.Allocated > plain.Peak.Allocated }},
		{"sharded by block", func(j *spec.Job) { j.Parallelism.Data, j.Parallelism.Sharding, j.Target.Count = 4, "fsdp", 4 }, func(e *estimator.Estimate) bool { return e.Parameters.PerRank < plain.Parameters.PerRank }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { require.True(t, test.less(run(test.change))) })
	}
}

func TestUnknownOperationIsNamedWithItsBytes(t *testing.T) {
	e, err := estimator.Run(graphJob(graphOf(t, "odd"), 16, "fp32"), a100, prior)
	require.NoError(t, err)
	require.Equal(t, []string{"unknown_operation", "assumed_loss"}, codes(e))
	require.Contains(t, e.Warnings[0].Text, "special_erfcx")
	require.Equal(t, units.Bytes(16*64*4), e.Warnings[0].Bytes)
}

func TestGraphThatDoesNotHoldTogether(t *testing.T) {
	tests := []struct {
		name   string
		change func(g map[string]any)
		paths  []string
	}{
		{"another format", func(g map[string]any) { g["format"] = "onnx" }, []string{"model.graph.format"}},
		{"a later version", func(g map[string]any) { g["version"] = 2.0 }, []string{"model.graph.version"}},
		{"no inputs", func(g map[string]any) { g["inputs"] = []any{} }, []string{"model.graph.inputs"}},
		{"a loss nobody knows", func(g map[string]any) { g["loss"] = "mse_los" }, []string{"model.graph.loss"}},
		{"a value that was not made", func(g map[string]any) { g["outputs"] = []any{"%nothing"} }, []string{"model.graph.outputs[0]"}},
		{"a type without a size", func(g map[string]any) { g["inputs"].([]any)[0].(map[string]any)["dtype"] = "complex64" }, []string{"model.graph.inputs[0].dtype"}},
		{"no list", func(g map[string]any) { g["nodes"] = "all of them" }, []string{"model.graph"}},
		{"a call of no module", func(g map[string]any) { g["calls"].([]any)[1].(map[string]any)["module"] = "down.under" }, []string{"model.graph.calls[1].module"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g := graphOf(t, "mlp")
			test.change(g)
			_, err := estimator.Run(graphJob(g, 2, "fp32"), a100, prior)
			var paths []string
			for _, f := range fault.FieldsOf(err) {
				paths = append(paths, f.Path)
			}
			require.Equal(t, test.paths, paths, "%v", err)
		})
	}
}

func TestGraphUnderALoopThatKnowsItsModels(t *testing.T) {
	job := graphJob(graphOf(t, "transformer"), 2, "fp32")
	job.Runtime.Trainer = "trl"
	_, err := estimator.Run(job, a100, prior)
	require.Equal(t, "runtime.trainer", fault.FieldsOf(err)[0].Path)
}

// TestBrokenGraphsAreRefused leaves parts of graphs out: what is left is
// answered or refused, and never ends in a panic.
func TestBrokenGraphsAreRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := graphOf(t, rapid.SampledFrom([]string{"mlp", "convnet", "odd"}).Draw(t, "graph"))
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			list := rapid.SampledFrom([]string{"modules", "parameters", "inputs", "calls", "nodes"}).Draw(t, "list")
			all, _ := g[list].([]any)
			if len(all) == 0 {
				continue
			}
			at := rapid.IntRange(0, len(all)-1).Draw(t, "entry")
			entry, _ := all[at].(map[string]any)
			if len(entry) == 0 {
				continue
			}
			key := rapid.SampledFrom(slices.Sorted(maps.Keys(entry))).Draw(t, "key")
			switch rapid.IntRange(0, 2).Draw(t, "how") {
			case 0:
				g[list] = slices.Delete(all, at, at+1)
			case 1:
				delete(entry, key)
			default:
				entry[key] = rapid.SampledFrom([]any{"", -1.0, "batch", []any{}, 1e30, nil, []any{"batch", -3.0}, map[string]any{}}).Draw(t, "value")
			}
		}
		_, err := estimator.Run(graphJob(g, 2, "fp32"), a100, prior)
		if err != nil {
			require.NotEmpty(t, fault.FieldsOf(err), "%v", err)
		}
	})
}
