package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/jobfile"
	"memplan/internal/planner"
)

// TestSnippetsSayTheJob reads every snippet of an option back: what it says is
// the option's job.
func TestSnippetsSayTheJob(t *testing.T) {
	job := decode(t, `
model: {id: meta-llama/Llama-3.2-1B}
training: {method: lora, quantization: nf4, micro_batch_size: 2, sequence_length: 1024, activation_checkpointing: full}
target: {gpu: RTX-4090}
runtime: {trainer: hf}`)
	answer, err := real(t, planner.Config{}).Recommend(t.Context(), planner.Advice{
		Job: job, Goal: "largest_micro_batch", Allow: []string{"training.micro_batch_size"},
	}, nil)
	require.NoError(t, err)
	require.NotEmpty(t, answer.Options)
	best := answer.Options[0]
	require.Greater(t, best.Job.Training.MicroBatchSize, 2)
	var tools []string
	for _, s := range best.Snippets {
		tools = append(tools, s.Tool)
		f, err := jobfile.Named(s.Tool)
		require.NoError(t, err)
		back, err := f.Read([]byte(s.Text))
		require.NoError(t, err)
		require.Empty(t, back.Unknown)
		if f.Kind != jobfile.Training {
			require.Equal(t, 1, back.Job.Target.Count, s.Text)
			continue
		}
		require.Equal(t, "meta-llama/Llama-3.2-1B", back.Job.Model.ID, s.Text)
		require.Equal(t, best.Job.Training.MicroBatchSize, back.Job.Training.MicroBatchSize)
		require.Equal(t, "full", back.Job.Training.Checkpointing.Mode)
		if q := back.Job.Training.Quantization; q != nil {
			require.Equal(t, "nf4", q.Type)
		} else {
			require.Contains(t, s.Text, "#   training.quantization.type: nf4")
		}
	}
	require.Equal(t, []string{"transformers", "trl", "axolotl", "llamafactory", "slurm", "kubernetes", "skypilot"}, tools)
}
