package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The best option is written as another tool's file, by the engine itself.
func TestRecommendWritesAToolsFile(t *testing.T) {
	const job = "model: {id: meta-llama/Llama-3.2-1B}\ntraining: {micro_batch_size: 1, sequence_length: 512}\ntarget: {gpu: RTX-4090}\n"
	for _, x := range []struct {
		name, to string
		code     int
		stdout   string
		stderr   string
	}{
		{"a tool that could run it", "axolotl", 0, "base_model: meta-llama/Llama-3.2-1B", "times the speed"},
		{"one that could not", "megatron", 2, "", "it can be written for: transformers"},
		{"one that is unknown", "axolot", 2, "", "nearest: axolotl"},
	} {
		t.Run(x.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(context.Background(), []string{"recommend", "-", "--goal", "largest_micro_batch", "--allow", "training.micro_batch_size", "--to", x.to}, surroundings{
				getenv: func(string) string { return "" }, stdin: strings.NewReader(job), stdout: &stdout, stderr: &stderr,
			})
			require.Equal(t, x.code, code, stderr.String())
			require.Contains(t, stdout.String(), x.stdout)
			require.Contains(t, stderr.String(), x.stderr)
		})
	}
}
