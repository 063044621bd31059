package estimator_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// TestExpertsInTheAnswer holds the answer of a mixture to what it says of its
// experts: the parameters a token passes, and how they are taken to be loaded.
func TestExpertsInTheAnswer(t *testing.T) {
	for _, test := range []struct {
		name, parallelism string
		assumed           bool
	}{
		{"nothing said", `{}`, true},
		{"balanced", `{"expert_load":"balanced"}`, false},
		{"a factor", `{"expert_load":{"factor":1.3}}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var j spec.Job
			require.NoError(t, json.Unmarshal(fmt.Appendf(nil, `{"version":1,"model":{"config":{"model_type":"mixtral","hidden_size":256,"intermediate_size":512,"num_hidden_layers":2,
			"num_attention_heads":8,"num_key_value_heads":4,"vocab_size":1000,"num_local_experts":8,"num_experts_per_tok":2}},
			"training":{"micro_batch_size":2,"sequence_length":128},"parallelism":%s,"runtime":{"trainer":"plain"}}`, test.parallelism), &j))
			e, err := estimator.Run(j, spec.Device{Name: "A100", ComputeCapability: spec.Version{8, 0}, Total: 80 << 30, Multiprocessors: 108}, spec.Coefficients{})
			require.NoError(t, err)
			require.Equal(t, e.Parameters.Total-2*6*3*256*512, e.Parameters.Active)
			require.Contains(t, e.Summary, "2 of 8 experts")
			said := false
			for _, a := range e.Assumptions {
				said = said || a.Path == "parallelism.expert_load"
			}
			require.Equal(t, test.assumed, said)
		})
	}
}
