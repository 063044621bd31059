package step

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// tiny is a Llama of two layers.
func tiny(t *testing.T, tied bool) (*Run, *model.Family) {
	config := map[string]any{
		"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
		"intermediate_size": 640, "vocab_size": 1000, "tie_word_embeddings": tied,
	}
	family, err := model.Of(config)
	require.NoError(t, err)
	net, err := family.New(*model.Read(config), model.Build{DType: graph.BF16})
	require.NoError(t, err)
	return &Run{Job: &spec.Job{}, Net: net}, family
}

// The counts are print_trainable_parameters of peft 0.21.2 on the same model.
func TestAdapt(t *testing.T) {
	names := func(n ...string) spec.Targets { return spec.Targets{Names: n} }
	cases := []struct {
		name      string
		method    string
		adapter   spec.Adapter
		tied      bool
		adapted   []string // names of the adapted layers of a block, or paths
		trainable int64
	}{
		{"the family's own layers", "lora", spec.Adapter{Rank: 8}, false, []string{"q_proj", "v_proj"}, 14336},
		{"named layers", "lora", spec.Adapter{Rank: 8, TargetModules: names("q_proj", "v_proj")}, false, []string{"q_proj", "v_proj"}, 14336},
		{"a name that another family has", "lora", spec.Adapter{Rank: 8, TargetModules: names("q_proj", "v_proj", "c_attn")}, false, []string{"q_proj", "v_proj"}, 14336},
		{
			"every linear layer but the head", "lora",
			spec.Adapter{Rank: 8, TargetModules: spec.Targets{AllLinear: true}},
			false,
			[]string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
			71680,
		},
		{
			"with magnitudes", "dora",
			spec.Adapter{Rank: 8, TargetModules: spec.Targets{AllLinear: true}},
			false,
			[]string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
			76288,
		},
		{"a name that is only the end of a word", "lora", spec.Adapter{Rank: 8, TargetModules: names("proj", "q_proj")}, false, []string{"q_proj"}, 8192},
		{
			"modules trained whole get no adapter", "lora",
			spec.Adapter{Rank: 8, TargetModules: names("q_proj", "lm_head"), ModulesToSave: []string{"lm_head"}},
			true,
			[]string{"q_proj"},
			8192 + 256000,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, family := tiny(t, c.tied)
			r.Job.Training.Method, r.Job.Training.Adapter = c.method, &c.adapter
			require.NoError(t, adapt(r, family))
			var adapted []string
			r.Net.Blocks[1].Walk(func(m *graph.Module) {
				if m.Class == "lora.Linear" {
					adapted = append(adapted, m.Name)
				}
			})
			require.Equal(t, c.adapted, adapted)
			var trainable int64
			for _, p := range r.Net.Root.Parameters() {
				if p.Trained {
					trainable += p.Numel()
				}
			}
			require.Equal(t, c.trainable, trainable)
		})
	}
}

func TestAdapterOrderAndType(t *testing.T) {
	r, family := tiny(t, false)
	r.Job.Training.Method = "dora"
	r.Job.Training.Adapter = &spec.Adapter{Rank: 4, DType: spec.FP32, TargetModules: spec.Targets{Names: []string{"layers.0.self_attn.k_proj"}}}
	require.NoError(t, adapt(r, family))
	r.Net.Root.Named("")
	k := r.Net.Blocks[0].Children[0].Children[1]
	var got []string
	k.Walk(func(m *graph.Module) {
		for _, p := range m.Params {
			got = append(got, m.Path+"."+p.Name+" "+p.DType.String())
		}
	})
	prefix := "model.layers.0.self_attn.k_proj."
	require.Equal(t, []string{
		prefix + "base_layer.weight bf16", prefix + "lora_A.default.weight fp32", prefix + "lora_B.default.weight fp32",
		prefix + "lora_magnitude_vector.default.weight fp32",
	}, got)
	require.Equal(t, graph.D(4, 256), k.Children[2].Children[0].Params[0].Shape)
	require.Equal(t, graph.D(128, 4), k.Children[3].Children[0].Params[0].Shape)
	require.Equal(t, graph.Adapters, k.Children[2].Children[0].Params[0].Category)
}

// A head tied to the embeddings is untied by training it whole; what was tied
// to a module trained whole stays tied to the frozen one.
func TestTrainCopyUnties(t *testing.T) {
	for _, saved := range []string{"lm_head", "embed_tokens"} {
		t.Run(saved, func(t *testing.T) {
			r, family := tiny(t, true)
			r.Job.Training.Method = "lora"
			r.Job.Training.Adapter = &spec.Adapter{Rank: 8, ModulesToSave: []string{saved}}
			require.NoError(t, adapt(r, family))
			var sizes []bool
			for _, p := range r.Net.Root.Parameters() {
				if p.Numel() == 256000 {
					sizes = append(sizes, p.Trained)
				}
			}
			require.Equal(t, []bool{false, true}, sizes, "one frozen table and one trained")
		})
	}
}

func TestAdaptRefuses(t *testing.T) {
	cases := []struct {
		name, target, want string
	}{
		{"no such module", "c_attn", "training.adapter.target_modules: got c_attn, want modules of this model: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head (nearest: all-linear)"},
		{"not a linear layer", "norm", "training.adapter.target_modules: got model.norm, want linear layers, not LlamaRMSNorm (nearest: all-linear)"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, family := tiny(t, false)
			r.Job.Training.Method = "lora"
			r.Job.Training.Adapter = &spec.Adapter{Rank: 8, TargetModules: spec.Targets{Names: []string{c.target}}}
			err := adapt(r, family)
			require.ErrorAs(t, err, new(fault.Fields))
			require.EqualError(t, err, c.want)
		})
	}
}
