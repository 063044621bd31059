package model_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
)

// TestDiffusionParameters compares the number of parameters with diffusers'.
func TestDiffusionParameters(t *testing.T) {
	for _, c := range []struct {
		name   string
		config map[string]any
		want   int64
	}{
		{"DiT-XL/2 256", map[string]any{
			"_class_name": "DiTTransformer2DModel", "num_attention_heads": 16.0, "attention_head_dim": 72.0, "in_channels": 4.0, "out_channels": 8.0,
			"num_layers": 28.0, "sample_size": 32.0, "patch_size": 2.0, "num_embeds_ada_norm": 1000.0,
		}, 749826464},
	} {
		t.Run(c.name, func(t *testing.T) {
			family, err := model.Of(c.config)
			require.NoError(t, err)
			net, err := family.New(*model.Read(c.config), model.Build{DType: graph.F32})
			require.NoError(t, err)
			var got int64
			for _, p := range net.Root.Parameters() {
				got += p.Numel()
			}
			require.Equal(t, c.want, got)
		})
	}
}
