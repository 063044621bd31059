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
		{"PixArt-XL/2 512", map[string]any{
			"_class_name": "PixArtTransformer2DModel", "num_attention_heads": 16.0, "attention_head_dim": 72.0, "in_channels": 4.0, "out_channels": 8.0,
			"num_layers": 28.0, "sample_size": 64.0, "patch_size": 2.0, "cross_attention_dim": 1152.0, "caption_channels": 4096.0,
		}, 610856096},
		{"Stable Diffusion 3 medium", map[string]any{
			"_class_name": "SD3Transformer2DModel", "num_layers": 24.0, "attention_head_dim": 64.0, "num_attention_heads": 24.0, "caption_projection_dim": 1536.0,
			"pos_embed_max_size": 192.0,
		}, 2028328000},
		{"a small Stable Diffusion 3.5, with dual attention and norms of queries and keys", map[string]any{
			"_class_name": "SD3Transformer2DModel", "num_layers": 9.0, "attention_head_dim": 16.0, "num_attention_heads": 4.0, "caption_projection_dim": 64.0,
			"joint_attention_dim": 96.0, "pooled_projection_dim": 80.0, "pos_embed_max_size": 24.0, "dual_attention_layers": []any{0.0, 1.0}, "qk_norm": "rms_norm",
		}, 1402176},
		{"a small CogVideoX", map[string]any{
			"_class_name": "CogVideoXTransformer3DModel", "num_attention_heads": 4.0, "attention_head_dim": 16.0, "num_layers": 9.0, "time_embed_dim": 48.0,
			"text_embed_dim": 96.0, "max_text_seq_length": 20.0, "sample_width": 16.0, "sample_height": 12.0, "sample_frames": 9.0,
		}, 815648},
		{"FLUX.1 dev", map[string]any{"_class_name": "FluxTransformer2DModel", "guidance_embeds": true}, 11901408320},
		{"a small LTX-Video", map[string]any{
			"_class_name": "LTXVideoTransformer3DModel", "in_channels": 16.0, "out_channels": 16.0, "num_attention_heads": 4.0, "attention_head_dim": 16.0,
			"cross_attention_dim": 64.0, "num_layers": 9.0, "caption_channels": 96.0,
		}, 661264},
		{"a small Wan", map[string]any{
			"_class_name": "WanTransformer3DModel", "patch_size": []any{1.0, 2.0, 2.0}, "num_attention_heads": 4.0, "attention_head_dim": 16.0,
			"text_dim": 96.0, "freq_dim": 32.0, "ffn_dim": 160.0, "num_layers": 9.0,
		}, 542816},
		{"Stable Diffusion 2.1", map[string]any{
			"_class_name": "UNet2DConditionModel", "in_channels": 4.0, "out_channels": 4.0, "attention_head_dim": []any{5.0, 10.0, 20.0, 20.0},
			"block_out_channels": []any{320.0, 640.0, 1280.0, 1280.0}, "cross_attention_dim": 1024.0, "use_linear_projection": true,
			"down_block_types": []any{"CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"},
			"up_block_types":   []any{"UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"},
		}, 865910724},
		{"Stable Diffusion XL", map[string]any{
			"_class_name": "UNet2DConditionModel", "in_channels": 4.0, "out_channels": 4.0, "attention_head_dim": []any{5.0, 10.0, 20.0},
			"block_out_channels": []any{320.0, 640.0, 1280.0}, "cross_attention_dim": 2048.0, "use_linear_projection": true,
			"down_block_types":             []any{"DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"},
			"up_block_types":               []any{"CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"},
			"transformer_layers_per_block": []any{1.0, 2.0, 10.0}, "addition_embed_type": "text_time", "addition_time_embed_dim": 256.0,
			"projection_class_embeddings_input_dim": 2816.0,
		}, 2567463684},
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
