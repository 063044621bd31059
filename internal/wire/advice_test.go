package wire

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/fault"
)

func TestDecodeAdvice(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		wrong      []string // paths
		goal       string
	}{
		{"json", `{"job": {"model": {"id": "gpt2"}}, "goal": "fastest_step", "probability": 0.5, "gpus": ["T4"]}`, nil, "fastest_step"},
		{"yaml", "job:\n  model: {id: gpt2}\n  training: {batch_size: 4}\nallow: [training.attention]\n", nil, ""},
		{"no job", `{"goal": "fastest_step"}`, []string{"job"}, ""},
		{"wrong goal", `{"job": {"model": {"id": "gpt2"}}, "goal": "fastest"}`, []string{"goal"}, ""},
		{"wrong probability", `{"job": {"model": {"id": "gpt2"}}, "probability": 1.5}`, []string{"probability"}, ""},
		{"unknown key", `{"job": {"model": {"id": "gpt2"}}, "goals": "fastest_step"}`, []string{"goals"}, ""},
		{"both", `{"job": {"model": {"id": "gpt2"}, "training": {"micro_batch_size": 0}}, "goal": "x"}`, []string{"goal", "job.training.micro_batch_size"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := DecodeAdvice([]byte(tt.text))
			var got []string
			for _, f := range fault.FieldsOf(err) {
				got = append(got, f.Path)
			}
			require.ElementsMatch(t, tt.wrong, got)
			if len(tt.wrong) == 0 {
				require.NoError(t, err)
				require.Equal(t, "gpt2", a.Job.Model.ID)
				require.Equal(t, tt.goal, a.Goal)
			}
		})
	}
}
