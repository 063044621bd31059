package estimator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// quantizedJob is a Llama of eight layers with a quantised base.
func quantizedJob(q *spec.Quantization) spec.Job {
	return spec.Job{
		Model: spec.Model{Config: map[string]any{
			"model_type": "llama", "hidden_size": 1024.0, "num_hidden_layers": 8.0, "num_attention_heads": 16.0, "num_key_value_heads": 8.0,
			"intermediate_size": 2816.0, "vocab_size": 8000.0, "tie_word_embeddings": false,
		}},
		Training: spec.Training{Method: "lora", Quantization: q, Precision: spec.PrecisionBF16Mixed, MicroBatchSize: 1, SequenceLength: 128},
		Runtime:  spec.Runtime{Trainer: "plain"},
		Target:   spec.Target{GPU: "A100-SXM4-80GB"},
	}
}

// The answer's bytes per parameter are those of the quantised weights, but for
// the tables of every layer and what is not quantised.
func TestWeightsPerParameter(t *testing.T) {
	const layers = 8
	const frozen = 2*8000*1024 + (2*layers+1)*1024 // embeddings, head, norms
	const rotary = 2 * 4 * 32                      // two buffers of frequencies
	cases := []struct {
		name      string
		q         spec.Quantization
		rest      int64   // bytes of an unquantised parameter
		tables    int64   // of a layer's weight
		once      int64   // of the model
		perWeight float64 // of a quantised one
	}{
		{"nf4", spec.Quantization{Type: "nf4", KBitPrepare: new(bool)}, 2, 64, 0, 0.5625},
		{"fp4", spec.Quantization{Type: "fp4", KBitPrepare: new(bool)}, 2, 64, 0, 0.5625},
		{"nf4 twice", spec.Quantization{Type: "nf4-double", KBitPrepare: new(bool)}, 2, 64 + 4 + 1024, 1024, 0.515869140625},
		{"fp4 twice", spec.Quantization{Type: "fp4-double", KBitPrepare: new(bool)}, 2, 64 + 4 + 1024, 1024, 0.515869140625},
		{"nf4 in blocks of 128", spec.Quantization{Type: "nf4", GroupSize: 128, KBitPrepare: new(bool)}, 2, 64, 0, 0.53125},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			e, err := estimator.Run(quantizedJob(&c.q), a100, spec.Coefficients{})
			require.NoError(t, err)
			require.Equal(t, "weights", e.PerParameter[0].Term)
			total := float64(e.Parameters.Total)
			bytes := e.PerParameter[0].Bytes*total - float64(frozen*c.rest+7*layers*c.tables+c.once+rotary)
			require.InDelta(t, c.perWeight, bytes/(total-frozen), 1e-9)
		})
	}
}

// Scripts prepare a quantised model unless they say otherwise: what is not
// quantised is in fp32, and the answer says that this was assumed.
func TestPreparationIsTheDefault(t *testing.T) {
	job, assumptions, err := estimator.Resolve(quantizedJob(&spec.Quantization{Type: "nf4"}))
	require.NoError(t, err)
	require.True(t, *job.Training.Quantization.KBitPrepare)
	require.Equal(t, "bitsandbytes", job.Training.Quantization.Library)
	var paths []string
	for _, a := range assumptions {
		if a.Decides {
			paths = append(paths, a.Path)
		}
	}
	require.Contains(t, paths, "training.quantization.kbit_prepare")

	prepared, err := estimator.Run(quantizedJob(&spec.Quantization{Type: "nf4"}), a100, spec.Coefficients{})
	require.NoError(t, err)
	raw, err := estimator.Run(quantizedJob(&spec.Quantization{Type: "nf4", KBitPrepare: new(bool)}), a100, spec.Coefficients{})
	require.NoError(t, err)
	const unquantised = 2*8000*1024 + 17*1024
	more := (prepared.PerParameter[0].Bytes - raw.PerParameter[0].Bytes) * float64(raw.Parameters.Total)
	require.InDelta(t, 2*unquantised, more, 0.1, "two more bytes for each")
}

func TestQuantisationNotRun(t *testing.T) {
	on := true
	cases := []struct {
		name   string
		q      spec.Quantization
		change func(*spec.Job)
		want   string
	}{
		{"another type", spec.Quantization{Type: "gptq-4bit"}, nil, "training.quantization.type: got gptq-4bit, want one of nf4, nf4-double, fp4, fp4-double, int8 (others are not modelled) (nearest: nf4)"},
		{"another library", spec.Quantization{Type: "nf4", Library: "torchao"}, nil, "training.quantization.library: got torchao, want bitsandbytes (others are not modelled) (nearest: bitsandbytes)"},
		{"blocks of odd size", spec.Quantization{Type: "nf4", GroupSize: 100}, nil, "training.quantization.group_size: got 100, want a power of two from 32 to 4096 (nearest: 64)"},
		{
			"a head that is the embeddings",
			spec.Quantization{Type: "nf4", QuantizedHead: &on},
			func(j *spec.Job) { j.Model.Config["tie_word_embeddings"] = true },
			"training.quantization.quantized_head: got true, want false: the head is the embeddings' weight, which is not quantised (nearest: false)",
		},
		{"no adapter", spec.Quantization{Type: "nf4"}, func(j *spec.Job) { j.Training.Method = "full" }, "training.method: got full, want lora or dora: quantised weights are frozen (nearest: lora)"},
		{"a quantised layer trained whole", spec.Quantization{Type: "nf4"}, func(j *spec.Job) {
			j.Training.Adapter = &spec.Adapter{ModulesToSave: []string{"layers.7.mlp.up_proj"}}
		}, "training.adapter.modules_to_save: got model.layers.7.mlp.up_proj, want modules that are not quantised: name it in training.quantization.skip_modules (nearest: lm_head)"},
		{"ranks", spec.Quantization{Type: "nf4"}, func(j *spec.Job) { j.Parallelism.Data, j.Target.Count = 2, 2 }, "training.quantization: got nf4, want none on several ranks (not modelled) (nearest: none)"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			job := quantizedJob(&c.q)
			if c.change != nil {
				c.change(&job)
			}
			_, err := estimator.Run(job, a100, spec.Coefficients{})
			require.EqualError(t, err, c.want)
		})
	}
}
