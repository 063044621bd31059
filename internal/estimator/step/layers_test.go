package step_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator"
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
)

// TestCopiesAreExact draws jobs and compares the program in which layers are
// copied and micro batches and steps repeat with the one in which all of them
// ran: event for event, up to the names of storages.
func TestCopiesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := drawJob(t)
		job, _, err := estimator.Resolve(job)
		require.NoError(t, err)
		card := graph.Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048}
		whole, err := step.CompileEveryLayer(job, card)
		if err != nil {
			t.Skip(err)
		}
		short, err := step.Compile(job, card)
		require.NoError(t, err)
		require.False(t, short.Machine.Inexact(), "the layers are alike")
		sameProgram(t, whole, short)
		steps := short.Program[len(short.Program)-1]
		require.Equal(t, step.SteadyStep, step.Phase(steps.Label))
		require.Equal(t, 3, steps.Repeat, "the first steady step stands for all")
		require.LessOrEqual(t, len(steps.Parts), 3, "the micro batches after the first are written down once")
	})
}

func drawJob(t *rapid.T) spec.Job {
	layers := float64(rapid.IntRange(7, 12).Draw(t, "layers"))
	config := map[string]any{
		"model_type": "llama", "hidden_size": 64.0, "intermediate_size": 160.0, "num_attention_heads": 8.0,
		"num_key_value_heads": 2.0, "vocab_size": 128.0, "num_hidden_layers": layers, "tie_word_embeddings": rapid.Bool().Draw(t, "tied"),
	}
	if rapid.Bool().Draw(t, "gpt2") {
		config = map[string]any{"model_type": "gpt2", "n_embd": 64.0, "n_head": 8.0, "n_positions": 128.0, "vocab_size": 128.0, "n_layer": layers}
	}
	job := spec.Job{Model: spec.Model{Config: config}}
	tr := &job.Training
	tr.Precision = rapid.SampledFrom([]spec.Precision{"bf16", "bf16-mixed", "fp32", "fp16-mixed"}).Draw(t, "precision")
	tr.MicroBatchSize, tr.SequenceLength = 2, 64
	tr.GradAccumSteps = rapid.SampledFrom([]int{1, 2, 5}).Draw(t, "accumulation")
	tr.Padding = rapid.SampledFrom([]string{"none", "mask"}).Draw(t, "padding")
	tr.Attention.Kernel = rapid.SampledFrom([]string{"sdpa", "eager"}).Draw(t, "attention")
	if rapid.Bool().Draw(t, "checkpointing") {
		reentrant := rapid.Bool().Draw(t, "reentrant")
		tr.Checkpointing = spec.Checkpointing{Mode: "full", Reentrant: &reentrant}
	}
	if method := rapid.SampledFrom([]string{"full", "lora", "dora"}).Draw(t, "method"); method != "full" {
		tr.Method = method
		tr.Adapter = &spec.Adapter{Rank: 4, Dropout: rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "dropout"), TargetModules: spec.Targets{AllLinear: true}}
	}
	job.Runtime.Trainer = rapid.SampledFrom([]string{"plain", "hf"}).Draw(t, "trainer")
	if rapid.Bool().Draw(t, "old") {
		job.Runtime.FrameworkVersion = "2.6.0"
	}
	return job
}

// sameProgram compares what two programs do from beginning to end. Consecutive
// frees may come in another order, and a storage whose name is used again goes by
// what made the last of them.
func sameProgram(t *rapid.T, a, b *step.Plan) {
	x, y := played(a), played(b)
	require.Equal(t, len(x), len(y), "events")
	for i := range x {
		if y[i].again {
			x[i].what, x[i].again = y[i].what, true
		}
		if x[i].what != y[i].what || x[i].Event != y[i].Event {
			require.Equal(t, x[i], y[i], "event %d", i)
		}
	}
}

// happening is an event that names its storage by how many were made before it.
type happening struct {
	allocator.Event
	what  string // made it
	again bool   // the program uses its name again
}

// played lists what a program does, repetitions written out.
func played(plan *step.Plan) []happening {
	p := player{plan: plan, names: map[int32]int32{}, again: map[int32]bool{}}
	p.parts(plan.Program)
	for i := range p.out {
		p.out[i].again = p.again[p.blocks[i]]
	}
	byStorage := func(x, y happening) int { return cmp.Compare(x.Block, y.Block) }
	for i := 0; i < len(p.out); i++ {
		from := i
		for i < len(p.out) && p.out[i].Kind == allocator.Free {
			i++
		}
		slices.SortFunc(p.out[from:i], byStorage)
	}
	return p.out
}

type player struct {
	plan  *step.Plan
	names map[int32]int32
	again map[int32]bool
	made  int32
	out   []happening
	// blocks are the storages' names in the program, by happening.
	blocks []int32
}

func (p *player) parts(parts []allocator.Part) {
	for _, part := range parts {
		for range max(part.Repeat, 1) {
			for _, e := range part.Events {
				p.event(e)
			}
			p.parts(part.Parts)
			p.carry(part.Carry)
		}
	}
}

func (p *player) event(e allocator.Event) {
	h := happening{Event: e}
	switch e.Kind {
	case allocator.Mark:
	case allocator.Alloc:
		p.made++
		p.names[e.Block] = p.made
		h.what = p.plan.Machine.Describe(e.Block)
		h.Block = p.made
	default:
		h.Block = p.names[e.Block]
	}
	p.out, p.blocks = append(p.out, h), append(p.blocks, e.Block)
}

func (p *player) carry(carry []allocator.Carry) {
	names := make([]int32, len(carry))
	for i, c := range carry {
		names[i] = p.names[c.From]
		delete(p.names, c.From)
	}
	for i, c := range carry {
		p.names[c.To], p.again[c.To] = names[i], true
	}
}

// written lists a program's events once, repetitions not written out.
func written(parts []allocator.Part, out []allocator.Event) []allocator.Event {
	for _, p := range parts {
		out = append(out, p.Events...)
		out = written(p.Parts, out)
	}
	return out
}
