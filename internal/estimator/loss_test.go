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

// A job that says how the loss is taken is refused where the library takes it
// another way, and answered where it says what is done anyway.
func TestLossPathIsNotIgnored(t *testing.T) {
	const gpt2 = `{"model_type":"gpt2","n_embd":64,"n_layer":2,"n_head":2,"vocab_size":512,"n_positions":128}`
	const job = `{"version":1,"model":{"config":%s},"training":{"precision":"fp32","micro_batch_size":1,"sequence_length":64,"loss":%s},
		"runtime":{"trainer":"plain","library_versions":{"transformers":%q},"framework_version":%q}}`
	for _, x := range []struct {
		name, loss, transformers, torch string
		want                            string // the path refused; empty: none
	}{
		{"fp32, as it is", `{"kind":"default","upcast":"fp32"}`, "5.24.0", "2.15.0", ""},
		{"not upcast", `{"kind":"default","upcast":"none"}`, "5.24.0", "2.15.0", "training.loss.upcast"},
		{"not upcast, by a model that did not", `{"kind":"default","upcast":"none"}`, "4.48.1", "2.6.0", ""},
		{"no copy of the logits", `{"kind":"default","shift_copy":true}`, "5.24.0", "2.15.0", "training.loss.shift_copy"},
		{"a copy, where there was one", `{"kind":"default","shift_copy":true}`, "4.48.1", "2.6.0", ""},
		{"chunks of nothing", `{"kind":"default","chunk_tokens":128}`, "5.24.0", "2.15.0", "training.loss.chunk_tokens"},
		{"logits let go", `{"kind":"default","holds_logits":false}`, "5.24.0", "2.15.0", "training.loss.holds_logits"},
	} {
		t.Run(x.name, func(t *testing.T) {
			var j spec.Job
			require.NoError(t, json.Unmarshal(fmt.Appendf(nil, job, gpt2, x.loss, x.transformers, x.torch), &j))
			_, err := estimator.Run(j, a100, prior)
			if x.want == "" {
				require.NoError(t, err)
				return
			}
			require.Len(t, fault.FieldsOf(err), 1, "%v", err)
			require.Equal(t, x.want, fault.FieldsOf(err)[0].Path)
		})
	}
}
