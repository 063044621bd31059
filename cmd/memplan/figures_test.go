package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/units"
)

func TestRoundTogetherAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOfN(rapid.Int64Range(0, 1<<40), 1, 20).Draw(t, "sizes")
		sizes := make([]units.Bytes, len(raw))
		var sum units.Bytes
		for i, b := range raw {
			sizes[i] = units.Bytes(b)
			sum += sizes[i]
		}
		shown, total := roundTogether(sizes)
		var added int64
		for i, h := range shown {
			added += h
			require.InDelta(t, float64(sizes[i])/hundredth, float64(h), 1, "no part is off by a hundredth or more")
		}
		require.Equal(t, total, added)
		require.InDelta(t, float64(sum)/hundredth, float64(total), 0.5+1e-6)
	})
}

func TestShell(t *testing.T) {
	tests := []struct{ name, word, want string }{
		{name: "plain", word: "bf16-mixed", want: "bf16-mixed"},
		{name: "object", word: `{"mode":"full"}`, want: `'{"mode":"full"}'`},
		{name: "quote", word: "it's", want: `'it'\''s'`},
		{name: "empty", word: "", want: "''"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { require.Equal(t, tt.want, shell(tt.word)) })
	}
}
