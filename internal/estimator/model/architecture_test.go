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

// TestExplicitParameters holds networks given by their sizes to the number of
// parameters of the libraries' own.
func TestExplicitParameters(t *testing.T) {
	data, err := os.ReadFile("testdata/architectures.json")
	require.NoError(t, err)
	var cases []struct {
		Name         string         `json:"name"`
		Architecture map[string]any `json:"architecture"`
		Image        []int64        `json:"image"`
		Frames       int64          `json:"frames"`
		Channels     int64          `json:"channels"`
		Parameters   int64          `json:"parameters"`
	}
	require.NoError(t, json.Unmarshal(data, &cases))
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			family, config, err := model.For(spec.Model{Architecture: c.Architecture})
			require.NoError(t, err)
			b := model.Build{Versions: newest, DType: graph.F32, Image: [2]int64{c.Image[0], c.Image[1]}, Frames: c.Frames}
			net, err := family.New(*config, b)
			require.NoError(t, err)
			total := int64(0)
			for _, p := range net.Root.Parameters() {
				total += p.Numel()
			}
			require.Equal(t, c.Parameters, total)
		})
	}
}

// TestWrongSizes names every key of model.architecture that is wrong by its
// public path.
func TestWrongSizes(t *testing.T) {
	cases := []struct {
		name, architecture, path string
	}{
		{"unknown type", `{"family": "segmentor", "backbone": {"type": "resnet", "depth": 50}, "decode_head": {"type": "psq"}}`, "model.architecture.decode_head.type"},
		{"unknown depth", `{"family": "segmentor", "backbone": {"type": "resnet", "depth": 51}, "decode_head": {"type": "fcn", "in_channels": 2048, "in_index": 3, "channels": 512}}`, "model.architecture.backbone.depth"},
		{"unknown key", `{"family": "segmentor", "backbone": {"type": "resnet", "depth": 50}, "decode_head": {"type": "fcn", "in_channels": 2048, "in_index": 3, "channels": 512, "widht": 3}}`, "model.architecture.decode_head.widht"},
		{"unknown key in a list", `{"family": "segmentor", "backbone": {"type": "resnet", "depth": 50}, "decode_head": {"type": "fcn", "in_channels": 2048, "in_index": 3, "channels": 512}, "auxiliary_heads": [{"type": "fcn", "in_channels": 1024, "channels": 256, "in_index": 2, "x": 1}]}`, "model.architecture.auxiliary_heads[0].x"},
		{"no backbone", `{"family": "segmentor", "decode_head": {"type": "fcn", "in_channels": 2048, "in_index": 3, "channels": 512}}`, "model.architecture.backbone"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var sizes map[string]any
			require.NoError(t, json.Unmarshal([]byte(c.architecture), &sizes))
			family, config, err := model.For(spec.Model{Architecture: sizes})
			require.NoError(t, err)
			_, err = family.New(*config, model.Build{Versions: newest, DType: graph.F32})
			require.ErrorContains(t, err, c.path)
		})
	}
}
