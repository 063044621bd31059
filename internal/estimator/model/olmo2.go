package model

import "memplan/internal/estimator/graph"

// olmo2Family is OLMo 2: norms behind attention and MLP, and over the whole
// width of queries and keys. Written from transformers 5.24 and 4.49,
// models/olmo2/modeling_olmo2.py.
var olmo2Family = Family{
	Name:           "olmo2",
	ModelTypes:     []string{"olmo2"},
	Source:         "huggingface/transformers:src/transformers/models/olmo2/modeling_olmo2.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newOlmo2,
}

func newOlmo2(c Config, b Build) (*Network, error) {
	l := readLlama(&c)
	l.class, l.mlpBias, l.norm, l.rotary, l.table = "Olmo2", false, olmo2RMSNorm(b), rotaryInType(b), floatTable
	l.viewsLate = true
	l.qkNorm = &qkNorm{names: [2]string{"q_norm", "k_norm"}, place: wholeWidth, make: func(heads int64) *graph.Module {
		return l.norm(b.DType, heads*l.headDim)
	}}
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, olmo2DecoderLayer)
	return m.network(m.causalLM("Olmo2ForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// olmo2RMSNorm is Llama's norm, but multiplies the weight in fp32 too.
func olmo2RMSNorm(b Build) func(d graph.DType, width int64) *graph.Module {
	if b.Versions.Transformers.Before(olmoInFloatSince) {
		return llamaRMSNorm
	}
	return func(d graph.DType, width int64) *graph.Module {
		m := graph.NewModule("Olmo2RMSNorm")
		weight := m.Param("weight", d, width)
		m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			hidden := f.Let("hidden_states", f.To(in[0], graph.F32))
			variance := f.Let("variance", f.MeanLast(f.Pow(hidden)))
			hidden = f.Let("hidden_states", f.Mul(hidden, f.Rsqrt(f.AddScalar(variance))))
			return one(f.To(f.Mul(weight.T(), hidden), in[0].DType))
		}
		return m
	}
}

// olmo2DecoderLayer is one block.
func olmo2DecoderLayer(l llamaConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule(l.class + "DecoderLayer")
	attention := m.Child("self_attn", llamaAttention(l, b, ctx))
	mlp := m.Child("mlp", llamaMLP(l, b.DType))
	postAttention := m.Child("post_attention_layernorm", l.norm(b.DType, l.hidden))
	postForward := m.Child("post_feedforward_layernorm", l.norm(b.DType, l.hidden))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		attended := f.Call(attention, in[0])
		hidden := f.Let("hidden_states", attended[0])
		f.Let("_", attended[1])
		hidden = f.Let("hidden_states", f.Call1(postAttention, hidden))
		hidden = f.Let("hidden_states", f.Add(residual, hidden))

		residual = f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(mlp, hidden))
		hidden = f.Let("hidden_states", f.Call1(postForward, hidden))
		return one(f.Let("hidden_states", f.Add(residual, hidden)))
	}
	return m
}
