package estimator_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

const megatronJob = `{"version":1,"model":{"implementation":"megatron","architecture":{"family":"gpt","hidden_size":512,"num_hidden_layers":8,"num_attention_heads":8,
	"intermediate_size":2048,"vocab_size":8192,"max_position_embeddings":512,"untied":true}},
	"training":{"precision":"bf16-mixed","micro_batch_size":1,"gradient_accumulation_steps":%d,"sequence_length":128},
	"parallelism":{"data":%d,"tensor":%d,"pipeline":%d,"sharding":%q,"sequence_parallel":%t,"megatron":{"transformer_implementation":"local"}},
	"runtime":{"trainer":"megatron","framework_version":"2.6.0"},"target":{"gpu":"A100-SXM4-80GB","count":%d}}`

// TestMegatronState: in half precision with gradients in fp32 a rank keeps 18
// bytes a parameter, and with the distributed optimizer over d ranks 6 + 12/d
// (docs/user-guide/features/dist_optimizer.md of Megatron-LM).
func TestMegatronState(t *testing.T) {
	for _, d := range []int{1, 2, 4, 8} {
		for _, tensor := range []int{1, 4} {
			for _, sharding := range []string{"ddp", "zero1"} {
				t.Run(fmt.Sprintf("%s data %d tensor %d", sharding, d, tensor), func(t *testing.T) {
					want := 18.0
					if sharding == "zero1" {
						want = 6 + 12/float64(d)
					}
					e := answer(t, megatronJob, 1, d, tensor, 1, sharding, false, d*tensor)
					got := 0.0
					for _, term := range []string{"weights", "gradients", "master_weights", "optimizer"} {
						got += perParameter(t, e, term)
					}
					require.InDelta(t, want, got, 0.01)
				})
			}
		}
	}
}

// TestPipelineStages: an answer lists every stage, is that of the one that
// requires most, and counts the parameters of the whole model.
func TestPipelineStages(t *testing.T) {
	whole := answer(t, megatronJob, 8, 1, 1, 1, "none", false, 1)
	e := answer(t, megatronJob, 8, 1, 2, 4, "none", true, 8)
	require.Len(t, e.Ranks, 4)
	worst, count := e.Ranks[0], 0
	for i, r := range e.Ranks {
		require.Equal(t, map[string]int{"pipeline": i}, r.Coordinates)
		require.Equal(t, fmt.Sprintf("%d-%d", 2*i, 2*i+1), r.Layers)
		count += r.Count
		if r.Peak.Required > worst.Peak.Required {
			worst = r
		}
	}
	require.Equal(t, 8, count)
	require.Equal(t, worst.Peak.Required, e.Peak.Required)
	require.Equal(t, worst.Name, e.Peak.At.Rank)
	require.Equal(t, whole.Parameters.Total, e.Parameters.Total)
	require.Greater(t, e.Ranks[1].Peak.Activations, e.Ranks[2].Peak.Activations) // more micro batches in flight
}
