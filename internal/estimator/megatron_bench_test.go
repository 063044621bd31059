package estimator_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// BenchmarkPipelineStages answers for all eight stages of a 70B model over
// tensor 8 and pipeline 8.
func BenchmarkPipelineStages(b *testing.B) {
	const job = `{"version":1,"model":{"implementation":"megatron","architecture":{"family":"llama","hidden_size":8192,"num_hidden_layers":80,"num_attention_heads":64,
		"num_key_value_heads":8,"intermediate_size":28672,"vocab_size":128256,"max_position_embeddings":4096,"position_embedding":"rope","swiglu":true,"bias":false,"norm":"rmsnorm","untied":true}},
		"training":{"precision":"bf16-mixed","micro_batch_size":1,"gradient_accumulation_steps":16,"sequence_length":4096},
		"parallelism":{"data":1,"tensor":8,"pipeline":8,"sharding":"none","sequence_parallel":true,"megatron":{"transformer_implementation":"local"}},
		"runtime":{"trainer":"megatron","framework_version":"2.6.0"},"target":{"gpu":"H100-SXM5-80GB","count":64}}`
	var j spec.Job
	if err := json.Unmarshal(fmt.Appendf(nil, job), &j); err != nil {
		b.Fatal(err)
	}
	var w estimator.Workspace
	for b.Loop() {
		if _, err := w.Run(j, a100, prior); err != nil {
			b.Fatal(err)
		}
	}
}
