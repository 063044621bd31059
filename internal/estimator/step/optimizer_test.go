package step

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// update is a row of testdata/updates-torch*.jsonl: what real PyTorch on a
// no-op CUDA driver allocates and frees from clipping to the end of
// optimizer.step() (testdata/updates.py).
type update struct {
	Torch     string
	Optimizer spec.Optimizer
	Params    [][2]any
	Names     []string // of the parameters, where they matter
	Clip      bool
	Scaler    bool
	Construct string
	First     string
	Later     string
	// Warmup is how many steps lie between the first and the later one, where
	// an update rule begins differently.
	Warmup int
}

func TestUpdates(t *testing.T) {
	for _, file := range []string{"testdata/updates-torch2.6.jsonl", "testdata/updates-torch2.15.jsonl", "testdata/rare-torch2.15.jsonl"} {
		for i, u := range readUpdates(t, file) {
			o := u.Optimizer
			if o.Library == "torchao" {
				continue // whose update is compiled: TestStatesOfTorchAO
			}
			name := fmt.Sprintf("%s/%d/%s-%s%s%d", u.Torch, i, o.Name, o.Library, o.Implementation, o.StateBits)
			t.Run(name, func(t *testing.T) {
				r := updateRun(t, u)
				l := &shortForm{sizes: map[int32]int64{}}
				l.read(r.M.Events())
				if c, ok := r.Optimizer.(constructing); ok {
					c.Construct(r)
				}
				l.text = nil
				require.Equal(t, u.Construct, l.read(r.M.Events()))
				if u.Scaler {
					r.noGrad(func(f *graph.Frame) { f.Drop(r.Scaler.Scale(r, f, f.Empty(graph.F32))) })
					l.read(r.M.Events())
				}
				for i, want := range []string{u.First, u.Later, u.Later} {
					if u.Clip {
						r.drop(r.clip())
					}
					r.stepOptimizer()
					if got := l.read(r.M.Events()); i > 0 || u.Warmup == 0 {
						require.Equal(t, want, got)
					}
				}
			})
		}
	}
}

// What torchao keeps: the first allocations of a step that are never freed.
func TestStatesOfTorchAO(t *testing.T) {
	for i, u := range readUpdates(t, "testdata/rare-torch2.15.jsonl") {
		o := u.Optimizer
		if o.Library != "torchao" {
			continue
		}
		t.Run(fmt.Sprintf("%d/%s%d%s", i, o.Name, o.StateBits, o.StateDType), func(t *testing.T) {
			r := updateRun(t, u)
			r.M.Events()
			r.stepOptimizer()
			require.Equal(t, kept(t, u.First), stateBytes(r.M.Events()))
		})
	}
}

// kept sums what a recorded step allocates and does not free.
func kept(t *testing.T, text string) (total int64) {
	for _, word := range strings.Fields(text) {
		n, err := strconv.ParseInt(word, 10, 64)
		require.NoError(t, err)
		total += n
	}
	return total
}

func readUpdates(t *testing.T, file string) []update {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	var rows []update
	s := bufio.NewScanner(f)
	for s.Scan() {
		var u update
		require.NoError(t, json.Unmarshal(s.Bytes(), &u))
		rows = append(rows, u)
	}
	require.NoError(t, s.Err())
	require.NotEmpty(t, rows)
	return rows
}

// updateRun is a run at the end of a backward pass over the row's parameters.
func updateRun(t *testing.T, u update) *Run {
	r := bareRun(u.Torch, u.Optimizer)
	if u.Scaler {
		r.Job.Training.GradScaler = spec.On
	}
	for i, p := range u.Params {
		var shape []int64
		for _, n := range p[1].([]any) {
			shape = append(shape, int64(n.(float64)))
		}
		d := DTypeOf(spec.DType(p[0].(string)))
		name := fmt.Sprint("p", i)
		if u.Names != nil {
			name = u.Names[i]
		}
		r.Params = append(r.Params, r.Net.Root.Param(name, d, shape...))
	}
	var err error
	r.Optimizer, err = newOptimizer(r)
	require.NoError(t, err)
	r.M.ToDevice(r.Net.Root)
	for _, p := range r.Params {
		p.Grad = r.M.Make(adamRule, graph.Gradients, p.DType, p.Shape)
	}
	return r
}

// bareRun is a run of a model without parameters.
func bareRun(torch string, o spec.Optimizer) *Run {
	card := graph.Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048}
	job := &spec.Job{Model: spec.Model{Config: map[string]any{"hidden_size": 256.0, "num_attention_heads": 4.0}}, Training: spec.Training{Optimizer: o, GradScaler: spec.Off}}
	r := &Run{Job: job, M: graph.NewMachine(spec.Versions{Torch: spec.ParseVersion(torch)}, card)}
	r.Net = &model.Network{Root: graph.NewModule("Model")}
	if !r.M.Versions.Torch.AtLeast(spec.Version{2, 15}) {
		warmWorkspace(r)
	}
	return r
}

// warmWorkspace does a matrix product, so that the handle of an older torch
// has its workspace, as a forward pass leaves it.
func warmWorkspace(r *Run) {
	r.noGrad(func(f *graph.Frame) { f.Drop(f.Outer(f.Empty(graph.F32, 2, 1), f.Empty(graph.F32, 1, 2))) })
}

// shortForm writes events as the recorded rows do: frees between two
// allocations in ascending order, and nothing of 0 bytes.
type shortForm struct {
	sizes map[int32]int64
	text  []string
	freed []int64
}

func (l *shortForm) read(events []allocator.Event) string {
	l.text = nil
	for _, e := range events {
		switch e.Kind {
		case allocator.Alloc:
			l.sizes[e.Block] = e.Bytes
			l.flush()
			l.text = append(l.text, fmt.Sprintf("+%d", e.Bytes))
		case allocator.Free:
			l.freed = append(l.freed, l.sizes[e.Block])
		}
	}
	l.flush()
	return strings.Join(l.text, " ")
}

func (l *shortForm) flush() {
	slices.Sort(l.freed)
	for _, n := range l.freed {
		l.text = append(l.text, fmt.Sprintf("-%d", n))
	}
	l.freed = nil
}

// The code books and scales of a parameter of 1,000,000 elements before and
// since bitsandbytes 0.44 (its change of the block size from 2048 to 256).
func TestScalesOfBitsAndBytes(t *testing.T) {
	for _, c := range []struct {
		name, version string
		want          int64
	}{
		{"blocks of 2048", "0.43.3", 2e6 + 2*4*489 + 2*1024},
		{"blocks of 256", "0.44.0", 2e6 + 2*4*3907 + 2*1024},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := spec.Optimizer{Name: "adamw", Library: "bitsandbytes", StateBits: 8}
			r := updateRun(t, update{Torch: "2.6.0", Optimizer: o, Params: [][2]any{{"bf16", []any{1000.0, 1000.0}}}})
			r.M.Versions.BitsAndBytes = spec.ParseVersion(c.version)
			r.M.Events()
			r.stepOptimizer()
			require.Equal(t, c.want, stateBytes(r.M.Events()))
		})
	}
}

// What is kept of a parameter of 1,000,000 elements, in a matrix. Adam: two
// moments in the parameter's type. bitsandbytes: a byte a state and an fp32
// scale per 256 elements; its two code books of 1,024 bytes are shared.
func TestStateBytes(t *testing.T) {
	half := 0.9
	for _, c := range []struct {
		name string
		o    spec.Optimizer
		d    spec.DType
		want int64
	}{
		{"adamw foreach fp32", spec.Optimizer{Name: "adamw", Library: "torch", Implementation: "foreach"}, spec.FP32, 8e6},
		{"adamw fused bf16", spec.Optimizer{Name: "adamw", Library: "torch", Implementation: "fused"}, spec.BF16, 4e6 + 4},
		{"sgd", spec.Optimizer{Name: "sgd", Library: "torch", Implementation: "foreach"}, spec.FP32, 0},
		{"sgd with momentum", spec.Optimizer{Name: "sgd", Library: "torch", Implementation: "foreach", Momentum: &half}, spec.FP32, 4e6},
		{"adafactor", spec.Optimizer{Name: "adafactor", Library: "transformers"}, spec.BF16, 8000},
		{"adamw 8 bit", spec.Optimizer{Name: "adamw", Library: "bitsandbytes", StateBits: 8}, spec.BF16, 2e6 + 2*4*3907 + 2*1024},
		{"adamw 8 bit paged", spec.Optimizer{Name: "adamw", Library: "bitsandbytes", StateBits: 8, Paged: true}, spec.BF16, 2*4*3907 + 2*1024},
		{"lion 32 bit", spec.Optimizer{Name: "lion", Library: "bitsandbytes", StateBits: 32}, spec.BF16, 4e6},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := updateRun(t, update{Torch: "2.15.0", Optimizer: c.o, Params: [][2]any{{string(c.d), []any{1000.0, 1000.0}}}})
			r.M.Events()
			r.stepOptimizer()
			require.Equal(t, c.want, stateBytes(r.M.Events()))
		})
	}
}

func stateBytes(events []allocator.Event) (n int64) {
	for _, e := range events {
		if e.Kind == allocator.Alloc && graph.Category(e.Category) == graph.OptimizerState {
			n += e.Bytes
		}
	}
	return n
}

func TestNewOptimizerRefuses(t *testing.T) {
	half, none := 0.9, 0.0
	torchAdamW := spec.Optimizer{Name: "adamw", Library: "torch", Implementation: "foreach"}
	for _, c := range []struct {
		name  string
		torch string
		o     func() spec.Optimizer
		d     spec.DType
		scale bool
		want  []string // paths
		near  string
	}{
		{
			"an unknown name", "2.15.0", func() spec.Optimizer {
				return spec.Optimizer{Name: "adan", Library: "torch", Implementation: "fused"}
			}, spec.FP32, false,
			[]string{"training.optimizer"},
			"{name: adagrad, library: torch, implementation: fused}",
		},
		{"a library that lacks it", "2.15.0", func() spec.Optimizer {
			return spec.Optimizer{Name: "lion", Library: "torch", Implementation: "foreach"}
		}, spec.FP32, false, []string{"training.optimizer"}, "{name: lion, library: bitsandbytes}"},
		{
			"8 bit states of torch", "2.15.0", func() spec.Optimizer { o := torchAdamW; o.StateBits = 8; return o }, spec.FP32, false,
			[]string{"training.optimizer.state_bits"},
			"32",
		},
		{"8 bit states of APOLLO", "2.15.0", func() spec.Optimizer {
			return spec.Optimizer{Name: "apollo_adamw", Library: "apollo-torch", StateBits: 8}
		}, spec.FP32, false, []string{"training.optimizer.state_bits"}, "32"},
		{"Muon of an old torch", "2.6.0", func() spec.Optimizer {
			return spec.Optimizer{Name: "muon", Library: "torch", Implementation: "for-loop"}
		}, spec.FP32, false, []string{"training.optimizer.name"}, "adamw"},
		{
			"a host of torch", "2.15.0", func() spec.Optimizer { o := torchAdamW; o.CPUOffload = true; return o }, spec.FP32, false,
			[]string{"training.optimizer.cpu_offload"},
			"false",
		},
		{
			"a scaler before a step in backward", "2.15.0", func() spec.Optimizer { o := torchAdamW; o.InBackward = true; return o }, spec.FP32, true,
			[]string{"training.grad_scaler"},
			"false",
		},
		{
			"several wrongs at once", "2.15.0", func() spec.Optimizer { o := torchAdamW; o.Momentum, o.Nesterov, o.Paged = &half, true, true; return o }, spec.FP32, false,
			[]string{"training.optimizer.paged", "training.optimizer.momentum", "training.optimizer.nesterov"},
			"false",
		},
		{"nesterov without momentum", "2.15.0", func() spec.Optimizer {
			return spec.Optimizer{Name: "sgd", Library: "torch", Implementation: "foreach", Nesterov: true}
		}, spec.FP32, false, []string{"training.optimizer.nesterov"}, "false"},
		{"SGD of bitsandbytes without momentum", "2.15.0", func() spec.Optimizer {
			return spec.Optimizer{Name: "sgd", Library: "bitsandbytes", Momentum: &none}
		}, spec.FP32, false, []string{"training.optimizer.momentum"}, "0.9"},
		{
			"RMSprop of bitsandbytes on bf16", "2.15.0", func() spec.Optimizer { return spec.Optimizer{Name: "rmsprop", Library: "bitsandbytes"} }, spec.BF16, false,
			[]string{"training.optimizer"},
			"adamw",
		},
		{"fused Adagrad of an old torch", "2.6.0", func() spec.Optimizer {
			return spec.Optimizer{Name: "adagrad", Library: "torch", Implementation: "fused"}
		}, spec.FP32, false, []string{"training.optimizer.implementation"}, "foreach"},
		{
			"a scaler on bf16 gradients", "2.15.0", func() spec.Optimizer { return torchAdamW }, spec.BF16, true,
			[]string{"training.grad_scaler"},
			"false",
		},
		{"nothing", "2.15.0", func() spec.Optimizer { return torchAdamW }, spec.FP32, true, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := bareRun(c.torch, c.o())
			r.Params = append(r.Params, r.Net.Root.Param("weight", DTypeOf(c.d), 8, 8))
			if c.scale {
				r.Job.Training.GradScaler = spec.On
			}
			_, err := newOptimizer(r)
			var paths []string
			for _, f := range fault.FieldsOf(err) {
				paths = append(paths, f.Path)
			}
			require.Empty(t, cmp.Diff(c.want, paths))
			if c.want != nil {
				require.Equal(t, c.near, fault.FieldsOf(err)[0].Nearest)
			}
		})
	}
}

// The groups torch steps one after the other, by the name patterns of
// transformers 5 and the classes of 4.49.
func TestUndecayed(t *testing.T) {
	for _, c := range []struct {
		name               string
		path, class, param string
		architecture       string
		old, new           bool
	}{
		{"a linear layer", "model.layers.0.mlp.up_proj", "Linear", "weight", "llama", false, false},
		{"a bias", "model.layers.0.self_attn.q_proj", "Linear", "bias", "llama", true, true},
		{"a layer norm by class", "transformer.ln_f", "LayerNorm", "weight", "gpt2", true, true},
		{"a norm of Llama by name", "model.layers.0.input_layernorm", "LlamaRMSNorm", "weight", "llama", true, true},
		{"the last norm of Llama", "model.norm", "LlamaRMSNorm", "weight", "llama", true, true},
		{"the last norm of Qwen2", "model.norm", "LlamaRMSNorm", "weight", "qwen2", false, true},
		{"a query norm", "model.layers.0.self_attn.q_norm", "Qwen3RMSNorm", "weight", "qwen3", false, true},
		{"a norm only in part of a word", "model.normalizer", "Linear", "weight", "llama", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := &graph.Module{Path: c.path, Class: c.class}
			p := &graph.Param{Name: c.param}
			require.Equal(t, c.old, undecayed(spec.Version{4, 49}, c.architecture, m, p))
			require.Equal(t, c.new, undecayed(spec.Version{5, 24}, c.architecture, m, p))
		})
	}
}
