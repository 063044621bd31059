package spec

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestShortAndLongForms(t *testing.T) {
	tests := []struct {
		name, in, out string
		into          any
	}{
		{"optimizer by name", `{"name":"sgd"}`, `"sgd"`, &Optimizer{}},
		{"optimizer in full", `{"name":"sgd","momentum":0}`, `{"name":"sgd","momentum":0}`, &Optimizer{}},
		{"checkpointing", `{"mode":"full"}`, `"full"`, &Checkpointing{}},
		{"checkpointing without mode", `{"every":2}`, `{"every":2}`, &Checkpointing{}},
		{"ema", `true`, `true`, &EMA{}},
		{"ema on the host", `{"device":"cpu"}`, `{"device":"cpu"}`, &EMA{}},
		{"wrap by policy", `"decoder-layer"`, `"decoder-layer"`, &Wrap{}},
		{"wrap by modules", `["Block"]`, `["Block"]`, &Wrap{}},
		{"wrap by size", `{"min_parameters":1e8}`, `{"min_parameters":100000000}`, &Wrap{}},
		{"expert load", `{"factor":1.3}`, `{"factor":1.3}`, &ExpertLoad{}},
		{"all linear layers", `"all-linear"`, `"all-linear"`, &Targets{}},
		{"auto number", `"auto"`, `"auto"`, new(AutoNumber)},
		{"count with a unit", `"7B"`, `7000000000`, new(Count)},
		{"sizes", `{"memory_gib":"24 GiB","headroom_gib":23.6}`, `{"memory_gib":24,"headroom_gib":23.6}`, &Target{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, json.Unmarshal([]byte(tt.in), tt.into))
			out, err := json.Marshal(tt.into)
			require.NoError(t, err)
			require.Equal(t, tt.out, string(out))
		})
	}
}

func TestFormsThatAreRefused(t *testing.T) {
	for text, into := range map[string]any{
		`"some"`: &Targets{}, `"maybe"`: new(Toggle), `false`: &EMA{}, `"many"`: new(Count), `"soon"`: new(AutoNumber), `{"memory_gib":"80 XB"}`: &Target{},
	} {
		require.Error(t, json.Unmarshal([]byte(text), into), text)
	}
}
