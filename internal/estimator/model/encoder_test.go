package model_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// The counts are transformers' own, of models built from these configs.
func TestParametersOfEncoders(t *testing.T) {
	for _, c := range []struct {
		name, config string
		want         int64
	}{
		{"bert-base masked", `{"model_type":"bert","architectures":["BertForMaskedLM"],"hidden_size":768,"intermediate_size":3072,"num_hidden_layers":12,"num_attention_heads":12,"vocab_size":30522}`, 109514298},
		{"bert-base classifier", `{"model_type":"bert","architectures":["BertForSequenceClassification"],"hidden_size":768,"intermediate_size":3072,"num_hidden_layers":12,"num_attention_heads":12,"vocab_size":30522}`, 109483778},
		{"modernbert-base", `{"model_type":"modernbert","architectures":["ModernBertForMaskedLM"],"hidden_size":768,"intermediate_size":1152,"num_hidden_layers":22,"num_attention_heads":12,"vocab_size":50368}`, 149655232},
		{"deberta-v3-base classifier", `{"model_type":"deberta-v2","architectures":["DebertaV2ForSequenceClassification"],"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,"intermediate_size":3072,"vocab_size":128100,"relative_attention":true,"position_buckets":256,"norm_rel_ebd":"layer_norm","share_att_key":true,"position_biased_input":false}`, 184423682},
		{"small electra", `{"model_type":"electra","architectures":["ElectraForMaskedLM"],"hidden_size":64,"intermediate_size":256,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":1000,"max_position_embeddings":128,"embedding_size":32}`, 141448},
		{"small distilbert", `{"model_type":"distilbert","architectures":["DistilBertForMaskedLM"],"dim":64,"hidden_dim":256,"n_layers":2,"n_heads":4,"vocab_size":1000,"max_position_embeddings":128}`, 177576},
		{"small albert", `{"model_type":"albert","architectures":["AlbertForMaskedLM"],"hidden_size":64,"intermediate_size":256,"num_hidden_layers":2,"num_attention_heads":4,"vocab_size":1000,"max_position_embeddings":128,"embedding_size":32}`, 91464},
		{"t5-large", `{"model_type":"t5","architectures":["T5ForConditionalGeneration"],"d_model":1024,"d_kv":64,"d_ff":4096,"num_layers":24,"num_heads":16,"vocab_size":32128}`, 737668096},
		{"small mt5", `{"model_type":"mt5","architectures":["MT5ForConditionalGeneration"],"d_model":64,"d_kv":16,"d_ff":128,"num_layers":2,"num_heads":4,"vocab_size":1000}`, 325632},
		{"bart-large", `{"model_type":"bart","architectures":["BartForConditionalGeneration"],"d_model":1024,"vocab_size":50265}`, 406291456},
	} {
		t.Run(c.name, func(t *testing.T) {
			var config map[string]any
			require.NoError(t, json.Unmarshal([]byte(c.config), &config))
			family, err := model.Of(config)
			require.NoError(t, err)
			net, err := family.New(*model.Read(config), model.Build{Versions: spec.Versions{Torch: spec.Version{2, 15}, Transformers: spec.Version{5, 24}}, DType: graph.BF16, Attention: model.Attention{Kernel: "sdpa"}})
			require.NoError(t, err)
			var total int64
			for _, p := range net.Root.Parameters() {
				total += p.Numel()
			}
			require.Equal(t, c.want, total)
		})
	}
}

// A config is refused with everything that is wrong with it.
func TestEncoderConfigsRefused(t *testing.T) {
	config := map[string]any{
		"model_type": "bert", "architectures": []any{"BertForPreTraining"}, "hidden_size": 65.0, "num_hidden_layers": 2.0, "num_attention_heads": 4.0,
		"vocab_size": 1000.0, "is_decoder": true, "position_embedding_type": "relative_key", "hidden_act": "mystery",
	}
	family, err := model.Of(config)
	require.NoError(t, err)
	_, err = family.New(*model.Read(config), model.Build{Versions: spec.Versions{Torch: spec.Version{2, 15}, Transformers: spec.Version{5, 24}}})
	for _, path := range []string{"intermediate_size", "architectures", "num_attention_heads", "is_decoder", "position_embedding_type", "hidden_act"} {
		require.ErrorContains(t, err, "model.config."+path)
	}
}
