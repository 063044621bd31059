package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// gemmaFamily is Gemma 1: Llama with scaled embeddings and norms that multiply
// in fp32. Written from transformers 5.24 and 4.49,
// models/gemma/modeling_gemma.py.
var gemmaFamily = Family{
	Name:           "gemma",
	ModelTypes:     []string{"gemma"},
	Source:         "huggingface/transformers:src/transformers/models/gemma/modeling_gemma.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newGemma,
}

// readGemma reads what the three generations share.
func readGemma(c *Config, class string) llamaConfig {
	l := readLlama(c)
	l.class, l.mlpBias, l.norm = class, false, gemmaRMSNorm
	l.headDim = c.IntOr(256, "head_dim")
	l.tied = c.Bool(true, "tie_word_embeddings")
	l.act = c.Activation("gelu_pytorch_tanh", "hidden_activation")
	return l
}

func newGemma(c Config, b Build) (*Network, error) {
	l := readGemma(&c, "Gemma")
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := newLlamaModel(l, b, llamaDecoderLayer)
	m.scaleEmbeddings(l, b)
	return m.network(m.causalLM("GemmaForCausalLM", "model", b, l.hidden, l.vocab, l.tied)), nil
}

// gemmaRMSNorm multiplies one plus the weight, in fp32.
func gemmaRMSNorm(d graph.DType, width int64) *graph.Module {
	m := graph.NewModule("GemmaRMSNorm")
	weight := m.Param("weight", d, width)
	normed := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		return one(f.Mul(x, f.Rsqrt(f.AddScalar(f.MeanLast(f.Pow(x))))))
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		output := f.Let("output", f.Func(normed, f.To(in[0], graph.F32))[0])
		output = f.Let("output", f.Mul(output, f.AddScalar(f.To(weight.T(), graph.F32))))
		return one(f.To(output, in[0].DType))
	}
	return m
}

// scaledEmbeddingSince is when the scale moved from the model into the
// embedding.
var scaledEmbeddingSince = spec.Version{5}

// scaleEmbeddings multiplies the embeddings by the root of their width: in the
// embedding, by a buffer, or before that in the model, by a number.
func (m *decoder) scaleEmbeddings(l llamaConfig, b Build) {
	if b.Versions.Transformers.Before(scaledEmbeddingSince) {
		m.scaledLate = (*graph.Frame).MulScalar
		return
	}
	embedding := m.embedTokens
	embedding.Class = l.class + "TextScaledWordEmbedding"
	scale := embedding.Buffer("embed_scale", b.DType)
	look := embedding.Forward
	embedding.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Mul(look(f, in...)[0], scale.T()))
	}
}
