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

// TestLibraryParameters holds the programs to the number of parameters of the
// libraries' own models: timm.create_model(name) and
// torchvision.models.get_model(name, weights=None, weights_backbone=None),
// timm 1.0.31 and torchvision 0.29.2.
func TestLibraryParameters(t *testing.T) {
	data, err := os.ReadFile("testdata/libraries.json")
	require.NoError(t, err)
	var parameters map[string]int64
	require.NoError(t, json.Unmarshal(data, &parameters))
	for _, id := range model.LibraryIDs() {
		t.Run(id, func(t *testing.T) {
			require.Contains(t, parameters, id)
			family, config, err := model.For(spec.Model{ID: id})
			require.NoError(t, err)
			net, err := family.New(*config, model.Build{Versions: newest, DType: graph.F32})
			require.NoError(t, err)
			total := int64(0)
			for _, p := range net.Root.Parameters() {
				total += p.Numel()
			}
			require.Equal(t, parameters[id], total)
		})
	}
}

func TestUnknownArchitecture(t *testing.T) {
	cases := []struct {
		name, id, nearest string
	}{
		{"misspelt", "torchvision/resnet500", "torchvision/resnet50"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := model.For(spec.Model{ID: c.id})
			require.ErrorContains(t, err, c.nearest)
		})
	}
}

// TestImageParameters holds the programs to the number of parameters that
// transformers' own classes have for the same config.json.
func TestImageParameters(t *testing.T) {
	cases := []struct {
		name, config string
		parameters   int64
	}{
		{"vit", `{"model_type": "vit", "architectures": ["ViTForImageClassification"], "num_labels": 1000, "image_size": 224, "patch_size": 16, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}`, 86567656},
		{"dinov2", `{"model_type": "dinov2", "architectures": ["Dinov2ForImageClassification"], "num_labels": 1000, "image_size": 518, "patch_size": 14, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "mlp_ratio": 4}`, 88117480},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var values map[string]any
			require.NoError(t, json.Unmarshal([]byte(c.config), &values))
			family, config, err := model.For(spec.Model{Config: values})
			require.NoError(t, err)
			net, err := family.New(*config, model.Build{Versions: newest, DType: graph.F32, Objective: "classification"})
			require.NoError(t, err)
			total := int64(0)
			for _, p := range net.Root.Parameters() {
				total += p.Numel()
			}
			require.Equal(t, c.parameters, total)
		})
	}
}
