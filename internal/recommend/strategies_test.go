package recommend

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
)

// Every strategy is a patch of known paths whose values the job takes back.
func TestStrategiesArePatchesOfKnownPaths(t *testing.T) {
	require.LessOrEqual(t, len(axes()), maxAxes)
	for _, a := range axes() {
		for _, c := range a.choices {
			t.Run(a.name+"/"+c.what, func(t *testing.T) {
				require.NotEmpty(t, c.cost)
				require.NotEmpty(t, c.patch)
				var j spec.Job
				for _, s := range c.patch {
					k := knobOf(s.path)
					k.set(&j, s.value)
				}
				for _, s := range c.patch {
					require.EqualValues(t, s.value, knobOf(s.path).get(&j), s.path)
				}
			})
		}
	}
}

func TestWrongRequestsNameEveryField(t *testing.T) {
	for _, tt := range []struct {
		name    string
		request Request
		wrong   []string
	}{
		{"right", Request{Goal: FastestStep, Allow: []string{"training.optimizer", "training.attention"}}, nil},
		{"goal", Request{Goal: "fast"}, []string{"goal"}},
		{"all", Request{Goal: "fast", Probability: 1.5, GlobalBatch: -1, Allow: []string{"training.attention", "model.id"}}, []string{"goal", "probability", "global_batch_size", "allow.1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, f := range tt.request.Check() {
				got = append(got, f.Path)
			}
			require.Equal(t, tt.wrong, got)
		})
	}
}
