package step_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
)

// The saved bytes of one layer per token, as traced through torch's
// saved-tensor hooks for two small shapes: hidden 64, 8 query heads and 2 key
// heads of width 8, inner width 160 (Llama) or 256 (GPT-2, all 8 heads), no
// dropout, flash attention. Not counted, as there: the two random-number states
// of the attention kernel, and layer norm's mean and rstd.
func TestSavedBytesPerTokenAndLayer(t *testing.T) {
	const (
		batch, tokens = 2, 64
		rngStates     = 16 + 8
		layerNorms    = 2 * 8 * batch * tokens // mean and rstd, fp32, two norms
		llamaLinear   = 64*64 + 2*64*16 + 64*64 + 3*64*160
	)
	llama := map[string]any{"model_type": "llama", "hidden_size": 64.0, "intermediate_size": 160.0, "num_attention_heads": 8.0, "num_key_value_heads": 2.0, "vocab_size": 128.0}
	gpt2 := map[string]any{
		"model_type": "gpt2", "n_embd": 64.0, "n_head": 8.0, "n_positions": 128.0, "vocab_size": 128.0,
		"activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
	}
	gpt2Fused := map[string]any{}
	for k, v := range gpt2 {
		gpt2Fused[k] = v
	}
	gpt2Fused["activation_function"] = "gelu"
	lora := func(targets ...string) *spec.Adapter {
		return &spec.Adapter{Rank: 4, Alpha: 8, TargetModules: spec.Targets{Names: targets, AllLinear: len(targets) == 0}}
	}
	tests := []struct {
		name      string
		config    map[string]any
		precision spec.Precision
		weights   spec.DType
		adapter   *spec.Adapter
		want      int64
		excluded  int64 // bytes a layer, not per token
	}{
		{"Llama, bf16", llama, spec.PrecisionBF16, spec.BF16, nil, 2664, rngStates},
		{"Llama, fp32 weights under bf16 autocast", llama, spec.PrecisionBF16Mixed, spec.FP32, nil, 3304, rngStates + 2*llamaLinear},
		{"LoRA on q and v, no autocast", llama, spec.PrecisionBF16, spec.BF16, lora("q_proj", "v_proj"), 2376, rngStates},
		{"LoRA on all seven, no autocast", llama, spec.PrecisionBF16, spec.BF16, lora(), 4120, rngStates},
		{"GPT-2, gelu_new", gpt2, spec.PrecisionBF16, spec.BF16, nil, 3616, rngStates + layerNorms},
		{"GPT-2, fused gelu", gpt2Fused, spec.PrecisionBF16, spec.BF16, nil, 2080, rngStates + layerNorms},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			saved := func(layers float64) int64 {
				config := map[string]any{"num_hidden_layers": layers, "n_layer": layers}
				for k, v := range tt.config {
					config[k] = v
				}
				job := spec.Job{Model: spec.Model{Config: config}}
				job.Training.Precision, job.Training.WeightsDType = tt.precision, tt.weights
				job.Training.MicroBatchSize, job.Training.SequenceLength = batch, tokens
				job.Training.Attention = spec.Attention{Kernel: "sdpa", Backend: "flash"}
				job.Runtime.Trainer = "hf" // no key-value cache
				if tt.adapter != nil {
					job.Training.Method, job.Training.Adapter = "lora", tt.adapter
				}
				return savedAfterForward(t, job)
			}
			layer := saved(3) - saved(2) - tt.excluded
			require.Equal(t, tt.want*batch*tokens, layer, "%.2f bytes per token", float64(layer)/(batch*tokens))
		})
	}
}

// savedAfterForward is the bytes held for backward when the first forward ends.
func savedAfterForward(t *testing.T, job spec.Job) int64 {
	t.Helper()
	job, _, err := estimator.Resolve(job)
	require.NoError(t, err)
	plan, err := step.Compile(job, graph.Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048})
	require.NoError(t, err)
	size, cat := map[int32]int64{}, map[int32]graph.Category{}
	var walk func(ps []allocator.Part) (int64, bool)
	walk = func(ps []allocator.Part) (int64, bool) {
		for _, p := range ps {
			for _, e := range p.Events {
				switch e.Kind {
				case allocator.Alloc:
					size[e.Block], cat[e.Block] = e.Bytes, graph.Category(e.Category)
				case allocator.Recat:
					cat[e.Block] = graph.Category(e.Category)
				case allocator.Free:
					delete(size, e.Block)
				case allocator.Mark:
					if e.Site == step.MarkCode(step.FirstStep, step.ForwardPart) {
						sum := int64(0)
						for b, n := range size {
							if cat[b] == graph.Activations {
								sum += n
							}
						}
						return sum, true
					}
				}
			}
			if sum, ok := walk(p.Parts); ok {
				return sum, true
			}
		}
		return 0, false
	}
	sum, ok := walk(plan.Program)
	require.True(t, ok)
	return sum
}
