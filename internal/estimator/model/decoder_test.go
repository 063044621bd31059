package model_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// newest are the versions the programs follow where nothing older is asked.
var newest = spec.Versions{Torch: spec.Version{2, 15}, Transformers: spec.Version{5, 24}}

// TestDecoderParameters holds the programs to the number of parameters that
// transformers' own classes have for the same config.json (real PyTorch:
// sum(p.numel() for p in model.parameters())).
func TestDecoderParameters(t *testing.T) {
	data, err := os.ReadFile("testdata/decoders.json")
	require.NoError(t, err)
	var cases []struct {
		Name       string         `json:"name"`
		Parameters int64          `json:"parameters"`
		Config     map[string]any `json:"config"`
	}
	require.NoError(t, json.Unmarshal(data, &cases))
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			family, err := model.Of(c.Config)
			require.NoError(t, err)
			net, err := family.New(*model.Read(c.Config), model.Build{Versions: newest, DType: graph.BF16, Attention: model.Attention{Kernel: "eager"}})
			require.NoError(t, err)
			total := int64(0)
			for _, p := range net.Root.Parameters() {
				total += p.Numel()
			}
			require.Equal(t, c.Parameters, total)
		})
	}
}
