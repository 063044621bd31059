package estimator_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// answer estimates a job given in JSON.
func answer(t *testing.T, job string, with ...any) *estimator.Estimate {
	t.Helper()
	var j spec.Job
	require.NoError(t, json.Unmarshal(fmt.Appendf(nil, job, with...), &j))
	e, err := estimator.Run(j, a100, prior)
	require.NoError(t, err)
	return e
}

// perParameter is a term of an answer's bytes per parameter.
func perParameter(t *testing.T, e *estimator.Estimate, term string) float64 {
	t.Helper()
	for _, x := range e.PerParameter {
		if x.Term == term {
			return x.Bytes
		}
	}
	require.Fail(t, "no such term", term)
	return 0
}

const llamaBF16 = `{"version":1,"model":{"config":{"model_type":"llama","hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":16,"num_attention_heads":32,
	"num_key_value_heads":8,"vocab_size":128256,"tie_word_embeddings":true}},
	"training":{"precision":"bf16","weights_dtype":"bf16","micro_batch_size":1,"sequence_length":%d,"optimizer":%s},"runtime":{"trainer":%q}}`

// TestResNetPerImage: measured on cards, one more image of 224² costs a
// ResNet-50 in fp32 82.5 to 83.2 MiB, whatever the batch.
func TestResNetPerImage(t *testing.T) {
	const job = `{"version":1,"model":{"id":"torchvision/resnet50","implementation":"torchvision"},
		"training":{"objective":"classification","precision":"fp32","micro_batch_size":%d,"image_size":[224,224]}}`
	few, many := answer(t, job, 96), answer(t, job, 256)
	slope := float64(many.Peak.Tensor-few.Peak.Tensor) / 160 / float64(units.MiB)
	require.InDelta(t, 82.85, slope, 0.35)
}

// TestAdamWPeak: bf16 weights without a master copy under foreach AdamW cost 10
// bytes a parameter in its step (2 weights, 2 gradients, 4 moments, 2 of
// temporaries), whatever the batch, until the activations pass it.
func TestAdamWPeak(t *testing.T) {
	const foreach = `{"name":"adamw","implementation":"foreach","library":"torch"}`
	for _, tokens := range []int{64, 256} {
		e := answer(t, llamaBF16, tokens, foreach, "hf")
		require.Equal(t, "optimizer", e.Peak.At.Part)
		require.InDelta(t, 10, float64(e.Peak.Tensor)/float64(e.Parameters.Total), 0.01)
	}
}

// TestMomentsPerParameter: what optimizers keep, by measurement and by the
// layout of their states: 8 bits in blocks of 256 with an fp32 scale each. In a
// plain loop: the Trainer of transformers keeps those of embeddings in 32 bits.
func TestMomentsPerParameter(t *testing.T) {
	for _, x := range []struct {
		name, optimizer string
		want            float64
	}{
		{"bf16", `{"name":"adamw","implementation":"foreach","library":"torch"}`, 4},
		{"8 bit", `{"name":"adamw","library":"bitsandbytes","state_bits":8}`, 2.03},
		{"8 bit of torchao", `{"name":"adamw","library":"torchao","state_bits":8}`, 2.03},
		{"4 bit of torchao", `{"name":"adamw","library":"torchao","state_bits":4}`, 1.0625},
	} {
		t.Run(x.name, func(t *testing.T) {
			require.InDelta(t, x.want, perParameter(t, answer(t, llamaBF16, 64, x.optimizer, "plain"), "optimizer"), 0.01)
		})
	}
}
