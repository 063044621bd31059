package microbench

import (
	"encoding/json"
	"fmt"
	"maps"

	"memplan/internal/planner"
)

// Steps is how many steps a training probe makes: one that sets everything up
// and the rest alike.
const Steps = 4

// object is a part of a job as the public format spells it.
type object = map[string]any

// job is a small training job, in the public format but for what only the
// process that runs it knows.
type job struct {
	name, text string
	model      object
	training   object
}

// jobs are of five families, of a few gigabytes each: together they take
// dense and grouped attention, both norms, convolutions, an encoder and a
// decoder of text, and images; fp32, bf16 and autocast; checkpointing and an
// adapter.
var jobs = []job{
	{
		name: "llama", text: "a small Llama in bf16 autocast",
		model: object{"config": object{
			"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "hidden_size": 1024, "intermediate_size": 2816,
			"num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 32000,
		}},
		training: object{"precision": "bf16-mixed", "micro_batch_size": 4, "sequence_length": 1024},
	},
	{
		name: "llama_checkpointed", text: "a small Llama in pure bf16 with activation checkpointing",
		model: object{"config": object{
			"model_type": "llama", "architectures": []string{"LlamaForCausalLM"}, "hidden_size": 2048, "intermediate_size": 5632,
			"num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000,
		}},
		training: object{
			"precision": "bf16", "weights_dtype": "bf16", "micro_batch_size": 4, "sequence_length": 2048, "activation_checkpointing": "full",
		},
	},
	{
		name: "qwen2_lora", text: "a small Qwen 2 with LoRA",
		model: object{"config": object{
			"model_type": "qwen2", "architectures": []string{"Qwen2ForCausalLM"}, "hidden_size": 896, "intermediate_size": 4864,
			"num_hidden_layers": 12, "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": true,
		}},
		training: object{
			"precision": "bf16-mixed", "weights_dtype": "bf16", "micro_batch_size": 2, "sequence_length": 1024, "method": "lora",
			"adapter": object{"rank": 16, "alpha": 32, "target_modules": []string{"q_proj", "k_proj", "v_proj", "o_proj"}},
		},
	},
	{
		name: "gpt2", text: "GPT-2 in fp32",
		model: object{"config": object{
			"model_type": "gpt2", "architectures": []string{"GPT2LMHeadModel"},
			"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257,
		}},
		training: object{"precision": "fp32", "micro_batch_size": 4, "sequence_length": 512},
	},
	{
		name: "bert", text: "BERT base that classifies, in bf16 autocast",
		model: object{"config": object{
			"model_type": "bert", "architectures": []string{"BertForSequenceClassification"}, "hidden_size": 768, "intermediate_size": 3072,
			"num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 30522,
		}},
		training: object{"precision": "bf16-mixed", "micro_batch_size": 16, "sequence_length": 512, "objective": "classification", "num_classes": 2},
	},
	{
		name: "vit", text: "ViT base in bf16 autocast",
		model:    object{"config": object{"model_type": "vit", "architectures": []string{"ViTForImageClassification"}, "image_size": 224}},
		training: object{"precision": "bf16-mixed", "micro_batch_size": 32, "image_size": []int{224, 224}, "objective": "classification", "num_classes": 1000},
	},
	{
		name: "resnet50", text: "ResNet-50 in fp32",
		model:    object{"id": "torchvision/resnet50", "implementation": "torchvision"},
		training: object{"precision": "fp32", "micro_batch_size": 32, "image_size": []int{224, 224}, "objective": "classification", "num_classes": 1000},
	},
	{
		name: "resnet50_mixed", text: "ResNet-50 in bf16 autocast",
		model:    object{"id": "torchvision/resnet50", "implementation": "torchvision"},
		training: object{"precision": "bf16-mixed", "micro_batch_size": 32, "image_size": []int{224, 224}, "objective": "classification", "num_classes": 1000},
	},
}

// about is what a process says of itself.
type about struct {
	Versions map[string]string `json:"versions"`
	CUDA     string            `json:"cuda"`
	Card     string            `json:"card"`
}

// public is the job in the public format, run by those versions on a card.
func (j job) public(a about, d planner.Device) object {
	training := maps.Clone(j.training)
	training["optimizer"] = object{"name": "adamw"}
	training["gradient_clipping"] = true
	libraries := object{}
	for _, name := range []string{"transformers", "peft", "torchvision"} {
		if v := a.Versions[name]; v != "" {
			libraries[name] = v
		}
	}
	target := object{"gpu": d.GPU}
	if d.GPU == "" {
		target = object{"memory_gib": int64(d.Memory.Total)}
	}
	return object{
		"version": 1, "name": "probe: " + j.text, "model": j.model, "training": training, "target": target,
		"runtime": object{"trainer": "plain", "framework_version": a.Versions["torch"], "library_versions": libraries},
	}
}

// measured is one size that a training probe reported, as runs spell it.
type measured struct {
	Metric   string `json:"metric"`
	Phase    string `json:"phase"`
	Bytes    int64  `json:"bytes"`
	Relation string `json:"relation"`
	Method   string `json:"method"`
}

// run is a measured job in the public format.
func (j job) run(a about, d planner.Device, sizes []measured) (json.RawMessage, error) {
	text, err := json.Marshal(object{
		"source": "memplan benchmark", "job": j.public(a, d), "measured": sizes, "tags": []string{"benchmark", "train_" + j.name},
		"environment": object{"gpu": d.Name, "driver": d.Driver, "cuda": a.CUDA, "host": d.Host},
		"notes":       fmt.Sprintf("%d steps of a plain loop on a batch that does not change", Steps),
	})
	return text, err
}
