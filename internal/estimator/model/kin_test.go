package model_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/model"
	"memplan/internal/fault"
)

// TestUnknownModelType holds the error for a model_type without a program to
// the family of its house, and to what taking that would mean.
func TestUnknownModelType(t *testing.T) {
	for _, test := range []struct{ name, kind, nearest, source string }{
		{"the next of a house", "llama4_text", "llama", "models/llama/modeling_llama.py"},
		{"a mixture", "qwen3_next", "qwen3_moe", "models/qwen3_moe/modeling_qwen3_moe.py"},
		{"a slip", "gpt-oss", "gpt_oss", "models/gpt_oss/modeling_gpt_oss.py"},
		{"a relative", "berta", "bert", "models/bert/modeling_bert.py"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := model.Of(map[string]any{"model_type": test.kind})
			fields := fault.FieldsOf(err)
			require.Len(t, fields, 1)
			require.Equal(t, test.nearest, fields[0].Nearest)
			require.Contains(t, fields[0].Want, test.source)
		})
	}
}
