package estimator_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// TestRecurrenceInTheAnswer holds how recurrent layers are computed to the
// answer: a deciding assumption where the job is silent, and an error where it
// asks for what is not modelled.
func TestRecurrenceInTheAnswer(t *testing.T) {
	for _, test := range []struct {
		name, training   string
		assumed, refused bool
	}{
		{"nothing said", ``, true, false},
		{"operations of torch", `,"linear_attention":"fallback"`, false, false},
		{"kernels", `,"linear_attention":"fused"`, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var j spec.Job
			require.NoError(t, json.Unmarshal(fmt.Appendf(nil, `{"version":1,"model":{"config":{"model_type":"qwen3_5_text","hidden_size":256,"intermediate_size":512,"num_hidden_layers":4,
			"num_attention_heads":4,"num_key_value_heads":2,"head_dim":64,"vocab_size":1000,"linear_num_key_heads":4,"linear_num_value_heads":8}},
			"training":{"micro_batch_size":2,"sequence_length":128%s},"runtime":{"trainer":"plain"}}`, test.training), &j))
			e, err := estimator.Run(j, spec.Device{Name: "A100", ComputeCapability: spec.Version{8, 0}, Total: 80 << 30, Multiprocessors: 108}, spec.Coefficients{})
			if test.refused {
				require.Len(t, fault.FieldsOf(err), 1)
				require.Equal(t, "training.linear_attention", fault.FieldsOf(err)[0].Path)
				return
			}
			require.NoError(t, err)
			said := false
			for _, a := range e.Assumptions {
				said = said || a.Path == "training.linear_attention" && a.Decides
			}
			require.Equal(t, test.assumed, said)
		})
	}
}
