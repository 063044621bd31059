package jobfile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/fault"
	"memplan/internal/wire"
)

// TestRead reads files as people have them: comments, keys that mean nothing
// for memory, code around the calls.
func TestRead(t *testing.T) {
	for _, x := range []struct {
		name, format, file string
		want               string // the job, in YAML
		unknown            []string
	}{
		{
			"axolotl", "axolotl", `
# a QLoRA of ours
base_model: mistralai/Mistral-7B-v0.1
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_modules:
  - q_proj
  - v_proj
datasets:
  - path: our/data
    type: alpaca
sequence_len: 8192
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_bnb_8bit
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
deepspeed:
`, `
model: {id: mistralai/Mistral-7B-v0.1}
training:
  method: lora
  quantization: nf4-double
  adapter: {rank: 32, alpha: 16, dropout: 0.05, target_modules: [q_proj, v_proj]}
  sequence_length: 8192
  packing: concatenated
  micro_batch_size: 2
  gradient_accumulation_steps: 4
  optimizer: {name: adamw, library: bitsandbytes, state_bits: 8}
  precision: bf16-mixed
  weights_dtype: bf16
  activation_checkpointing: full
  attention: flash
runtime: {trainer: hf}
`, []string{"datasets.0.path", "datasets.0.type", "num_epochs", "deepspeed"},
		},
		{
			"a script", "transformers", `
import torch
from transformers import (AutoModelForCausalLM, TrainingArguments, Trainer)

name = "our/model"  # TrainingArguments(per_device_train_batch_size=99) in a comment
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16, device_map={"": 0})
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out", learning_rate=2e-4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2, bf16=True,
        gradient_checkpointing=True, gradient_checkpointing_kwargs=dict(use_reentrant=False),
        optim="adamw_torch",
    ),
    train_dataset=make(data, 3)[0],
)
`, `
model: {id: Qwen/Qwen2.5-0.5B}
training:
  method: full
  micro_batch_size: 4
  gradient_accumulation_steps: 2
  precision: bf16-mixed
  weights_dtype: bf16
  optimizer: {name: adamw, implementation: foreach, library: torch}
  activation_checkpointing: {mode: full, reentrant: false}
runtime: {trainer: hf}
`, []string{
				"Trainer.model", "TrainingArguments.output_dir", "TrainingArguments.learning_rate",
			},
		},
		{
			"deepspeed", "deepspeed", `{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}, "reduce_bucket_size": 2e8},
  "fp16": {"enabled": true, "loss_scale": 0}, "steps_per_print": 100}`, `
model: {parameters: 1e9}
training: {micro_batch_size: 8, precision: fp16-mixed, weights_dtype: fp16, master_weights: fp32}
parallelism: {sharding: zero2, offload: [optimizer], offload_to: cpu, zero: {reduce_bucket_size: 2e8}}
`, []string{"zero_optimization.offload_optimizer.pin_memory", "fp16.loss_scale", "steps_per_print"},
		},
		{
			"megatron", "megatron", `
# pretrain
torchrun --nproc-per-node=8 --nnodes 4 pretrain_gpt.py \
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 \
    --sequence-parallel --use-distributed-optimizer \
    --micro-batch-size 2 --global-batch-size 64 --seq-length 4096 --bf16 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --data-path "my data/corpus"
`, `
model: {parameters: 1e9}
training: {micro_batch_size: 2, sequence_length: 4096, gradient_accumulation_steps: 8, precision: bf16-mixed, weights_dtype: bf16, master_weights: fp32, activation_checkpointing: full}
parallelism: {data: 4, tensor: 4, pipeline: 2, sequence_parallel: true, sharding: zero1, gpus_per_node: 8}
runtime: {trainer: megatron}
target: {count: 32}
`, []string{"data-path"},
		},
		{
			"slurm", "slurm", `#!/bin/bash
#SBATCH --job-name=ft
#SBATCH -N 2
#SBATCH --nodes=2
#SBATCH --gres=gpu:a100:8
srun python train.py
`, `
model: {parameters: 1e9}
parallelism: {gpus_per_node: 8}
target: {gpu: A100, count: 16}
`, []string{"job-name", "N"},
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			f, err := Named(x.format)
			require.NoError(t, err)
			got, err := f.Read([]byte(x.file))
			require.NoError(t, err)
			want, err := wire.DecodeYAML([]byte(x.want))
			require.NoError(t, err)
			if got.Job.Model.ID == "" {
				want.Model = got.Job.Model // a file need not name one
			}
			require.Equal(t, settingsOf(want), settingsOf(got.Job))
			require.Subset(t, got.Unknown, x.unknown)
			found, err := Detect([]byte(x.file))
			require.NoError(t, err)
			require.Equal(t, x.format, found.Format)
		})
	}
}

func TestReadRefuses(t *testing.T) {
	for _, x := range []struct{ name, format, file, path string }{
		{"a word for a number", "axolotl", "micro_batch_size: two", "micro_batch_size"},
		{"half a sample", "axolotl", "micro_batch_size: 1.5", "micro_batch_size"},
		{"an optimizer nobody has", "transformers", `TrainingArguments(optim="adamw_torhc")`, "TrainingArguments.optim"},
		{"a stage that is none", "deepspeed", `{"zero_optimization": {"stage": 4}}`, "zero_optimization.stage"},
		{"no YAML", "axolotl", "a: [", "axolotl.yaml"},
		{"an alias", "axolotl", "a: &x 1\nb: *x", "axolotl.yaml"},
	} {
		t.Run(x.name, func(t *testing.T) {
			f, err := Named(x.format)
			require.NoError(t, err)
			_, err = f.Read([]byte(x.file))
			fields := fault.FieldsOf(err)
			require.Len(t, fields, 1, "%v", err)
			require.Equal(t, x.path, fields[0].Path)
			require.Equal(t, fault.Invalid, fault.KindOf(err))
		})
	}
	_, err := Named("axolot")
	require.ErrorContains(t, err, "nearest: axolotl")
	_, err = Detect([]byte("hello: world"))
	require.Equal(t, fault.Invalid, fault.KindOf(err))
}
