package jobfile

import (
	goflag "flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator/spec"
	"memplan/internal/units"
	"memplan/internal/wire"
)

var update = goflag.Bool("update", false, "write the files of testdata anew")

func job(t testing.TB, yaml string) spec.Job {
	j, err := wire.DecodeYAML([]byte(yaml))
	require.NoError(t, err)
	return j
}

const (
	qlora = `
model: {id: meta-llama/Llama-3.1-8B}
training: {method: lora, adapter: {rank: 16, alpha: 32, dropout: 0.05, target_modules: all-linear, modules_to_save: [lm_head], use_rslora: true}, quantization: nf4-double,
  precision: bf16-mixed, weights_dtype: bf16, optimizer: paged_adamw_8bit, micro_batch_size: 2, gradient_accumulation_steps: 8, sequence_length: 4096, objective: sft,
  activation_checkpointing: {mode: full, reentrant: false}, attention: flash, packing: none, gradient_clipping: true}
target: {gpu: A100-SXM4-80GB, count: 1}
runtime: {trainer: hf}`
	liger8B = `
model: {id: meta-llama/Llama-3.1-8B}
training: {method: full, precision: bf16-mixed, weights_dtype: fp32, optimizer: adamw_torch_fused, micro_batch_size: 1, gradient_accumulation_steps: 16, sequence_length: 8192,
  activation_checkpointing: {mode: full, reentrant: true}, attention: sdpa, fused_kernels: [rms_norm, rope, swiglu], loss: fused-linear, gradient_clipping: false, compile: true, objective: sft, packing: concatenated}
runtime: {trainer: trl}`
	sharded = `
training: {precision: bf16-mixed, activation_checkpointing: full}
parallelism: {data: 8, sharding: fsdp, fsdp: {version: 2, wrap: decoder-layer, reshard_after_forward: true, backward_prefetch: pre}, offload: [parameters, optimizer]}
target: {count: 8}
model: {parameters: 8e9}
runtime: {trainer: hf}`
	zero = `
model: {parameters: 8e9}
training: {precision: bf16-mixed, weights_dtype: bf16, master_weights: fp32, micro_batch_size: 4, gradient_accumulation_steps: 2, gradient_clipping: true, optimizer: {name: adamw, library: deepspeed}}
parallelism: {data: 16, sharding: zero3, offload: [optimizer, parameters], offload_to: nvme, zero: {reduce_bucket_size: 5e8, overlap_comm: true, contiguous_gradients: true, sub_group_size: 1e9,
  stage3_prefetch_bucket_size: auto, stage3_param_persistence_threshold: 1e5, stage3_max_live_parameters: 1e9, stage3_max_reuse_distance: 1e9}}
target: {count: 16}
runtime: {trainer: deepspeed}`
	tuned = `
model: {parameters: 8e9}
training: {method: full, precision: bf16, weights_dtype: bf16, optimizer: {name: adamw, library: torch, implementation: fused, in_backward: true}, micro_batch_size: 2, gradient_accumulation_steps: 1, sequence_length: 2048,
  activation_checkpointing: full, loss: chunked, compile: true, packing: concatenated}
parallelism: {offload: [activations]}
runtime: {trainer: torchtune}`
	lightningDDP = `
model: {id: timm/resnet50}
training: {precision: fp16-mixed, weights_dtype: fp32, gradient_accumulation_steps: 2, gradient_clipping: true, micro_batch_size: 64}
parallelism: {data: 16, sharding: ddp, gpus_per_node: 8}
target: {count: 16}
runtime: {trainer: lightning, sync_batch_norm: true, cudnn_benchmark: true}`
	megatron3D = `
model: {parameters: 70e9}
training: {precision: bf16-mixed, weights_dtype: bf16, master_weights: fp32, micro_batch_size: 1, gradient_accumulation_steps: 16, sequence_length: 4096, optimizer: adamw,
  activation_checkpointing: {mode: selective, modules: [core_attn, mlp]}}
parallelism: {data: 2, tensor: 8, pipeline: 4, gpus_per_node: 8, sharding: zero1, sequence_parallel: true, virtual_pipeline: 2, megatron: {transformer_implementation: transformer_engine, overlap_grad_reduce: true, overlap_param_gather: true}}
target: {count: 64}
runtime: {trainer: megatron}`
	titan = `
model: {parameters: 8e9}
training: {precision: bf16-mixed, weights_dtype: fp32, micro_batch_size: 1, gradient_accumulation_steps: 1, sequence_length: 8192, optimizer: {name: adamw, implementation: fused}, gradient_clipping: true,
  activation_checkpointing: {mode: selective, policy: op}, compile: true}
parallelism: {data: 8, sharding: fsdp, replicate: 2, fsdp: {reshard_after_forward: true}}
target: {count: 8}
runtime: {trainer: torchtitan}`
	settled = `
model: {parameters: 8e9}
runtime: {allocator: {expandable_segments: true, max_split_size_mb: 128, garbage_collection_threshold: 0.8, roundup_power2_divisions: "[256:1,512:2,>:4]"}}`
	cluster = `
model: {parameters: 8e9}
parallelism: {data: 16, sharding: fsdp, gpus_per_node: 8}
target: {gpu: H100-SXM5-80GB, count: 16}`
)

// TestWrite holds each format's text for a job that has all it can say, and
// what it cannot.
func TestWrite(t *testing.T) {
	for _, x := range []struct {
		name, format, job string
		unsaid            []string
	}{
		{"transformers", "transformers", qlora, []string{"target.count", "target.gpu", "training.objective", "training.packing", "training.sequence_length"}},
		{"trl", "trl", liger8B, nil},
		{"accelerate", "accelerate", sharded, []string{"model.parameters", "runtime.trainer"}},
		{"deepspeed", "deepspeed", zero, []string{"model.parameters", "parallelism.data", "runtime.trainer", "target.count"}},
		{"axolotl", "axolotl", qlora, []string{"target.count", "target.gpu", "training.objective"}},
		{"axolotl liger", "axolotl", liger8B, []string{"runtime.trainer", "training.objective", "training.weights_dtype"}},
		{"llamafactory", "llamafactory", qlora, []string{"target.count", "target.gpu"}},
		{"torchtune", "torchtune", tuned, []string{"model.parameters"}},
		{"lightning", "lightning", lightningDDP, []string{"model.id", "training.micro_batch_size"}},
		{"megatron", "megatron", megatron3D, []string{"model.parameters"}},
		{"torchtitan", "torchtitan", titan, []string{"model.parameters", "target.count"}},
		{"alloc-conf", "alloc-conf", settled, []string{"model.parameters"}},
		{"slurm", "slurm", cluster, []string{"model.parameters", "parallelism.data", "parallelism.sharding"}},
		{"kubernetes", "kubernetes", strings.Replace(cluster, "16", "8", 2), []string{"model.parameters", "parallelism.data", "parallelism.gpus_per_node", "parallelism.sharding"}},
		{"skypilot", "skypilot", cluster, []string{"model.parameters", "parallelism.data", "parallelism.sharding"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			f, err := Named(x.format)
			require.NoError(t, err)
			got, err := f.Write(Subject{Job: job(t, x.job), Need: 40 * units.GiB, Host: 200 * units.GiB})
			require.NoError(t, err)
			golden(t, x.name+".txt", got.Text)
			require.Equal(t, x.unsaid, got.Unsaid)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", strings.ReplaceAll(name, " ", "_"))
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// TestEveryFormatIsWritten keeps the table above whole.
func TestEveryFormatIsWritten(t *testing.T) {
	for _, f := range Formats() {
		_, err := os.Stat(filepath.Join("testdata", f.Name+".txt"))
		require.NoError(t, err, "no example of %s", f.Name)
		require.NotEmpty(t, f.Paths(), f.Name)
		require.NotEmpty(t, f.Source, f.Name)
	}
}

// pick draws one of some values.
func pick[T any](t *rapid.T, label string, from ...T) T {
	return rapid.SampledFrom(from).Draw(t, label)
}

// strategies draws a job with everything set that a search may change.
func strategies(t *rapid.T) spec.Job {
	yes := func(label string) bool { return rapid.Bool().Draw(t, label) }
	toggle := func(label string) *bool { b := yes(label); return &b }
	j := spec.Job{Version: 1, Model: spec.Model{ID: "meta-llama/Llama-3.1-8B"}}
	tr := &j.Training
	tr.Method = pick(t, "method", "full", "lora", "dora")
	if tr.Method != "full" {
		tr.Adapter = &spec.Adapter{
			Rank: pick(t, "rank", 8, 64), Alpha: 16, Dropout: pick(t, "dropout", 0, 0.1),
			TargetModules: pick(t, "targets", spec.Targets{AllLinear: true}, spec.Targets{Names: []string{"q_proj", "v_proj"}}),
		}
		if q := pick(t, "quantization", "", "nf4", "nf4-double", "fp4", "int8"); q != "" {
			tr.Quantization = &spec.Quantization{Type: q}
		}
	}
	tr.Precision = pick(t, "precision", spec.PrecisionBF16Mixed, spec.PrecisionFP16Mixed, spec.PrecisionFP32, spec.PrecisionTF32, spec.PrecisionBF16)
	tr.WeightsDType = pick(t, "weights", spec.FP32, spec.BF16, spec.FP16)
	if tr.Precision == spec.PrecisionBF16 {
		tr.WeightsDType = spec.BF16
	}
	if tr.Precision == spec.PrecisionFP32 || tr.Precision == spec.PrecisionTF32 {
		tr.WeightsDType = spec.FP32
	}
	tr.MasterWeights = pick(t, "master", "none", "fp32")
	if tr.MasterWeights == "fp32" {
		tr.Precision, tr.WeightsDType = spec.PrecisionBF16Mixed, spec.BF16
	}
	tr.Optimizer = pick(t, "optimizer",
		spec.Optimizer{Name: "adamw", Implementation: "foreach", Library: "torch"}, spec.Optimizer{Name: "adamw", Implementation: "fused", Library: "torch"},
		spec.Optimizer{Name: "adamw", Library: "bitsandbytes", StateBits: 8}, spec.Optimizer{Name: "adamw", Library: "bitsandbytes", StateBits: 8, Paged: true},
		spec.Optimizer{Name: "adafactor", Library: "transformers"}, spec.Optimizer{Name: "sgd", Library: "torch"}, spec.Optimizer{Name: "lamb", Library: "apex"})
	tr.MicroBatchSize, tr.GradAccumSteps, tr.SequenceLength = pick(t, "micro batch", 1, 6), pick(t, "accumulation", 1, 8), pick(t, "sequence", 512, 8192)
	tr.Checkpointing = spec.Checkpointing{Mode: pick(t, "checkpointing", "none", "full")}
	if tr.Checkpointing.Mode == "full" {
		tr.Checkpointing.Reentrant = toggle("reentrant")
	}
	tr.Attention.Kernel = pick(t, "attention", "sdpa", "flash", "eager")
	tr.Loss.Kind = pick(t, "loss", "default", "fused-linear", "chunked")
	if yes("fused kernels") {
		tr.FusedKernels = []string{"rms_norm", "rope", "swiglu"}
	}
	tr.Compile, tr.GradClipping = yes("compile"), toggle("clipping")
	tr.Packing, tr.Objective = pick(t, "packing", "none", "concatenated", "padded-free"), "sft"
	p := &j.Parallelism
	p.Sharding = pick(t, "sharding", "none", "ddp", "fsdp", "zero1", "zero2", "zero3")
	p.Data = 1
	if p.Sharding != "none" {
		p.Data = pick(t, "data", 2, 8)
	}
	if p.Sharding == "fsdp" {
		p.FSDP = &spec.FSDP{Version: 2, Wrap: &spec.Wrap{Policy: "decoder-layer"}, ReshardAfterForward: toggle("reshard")}
	}
	if yes("offload") {
		p.Offload, p.OffloadTo = []string{"optimizer", "parameters"}, "cpu"
	}
	p.Tensor, p.Pipeline, p.Context, p.Expert, p.ExpertTensor = 1, 1, 1, 1, 1
	j.Target = spec.Target{GPU: pick(t, "gpu", "A100-SXM4-80GB", "RTX-4090", "RTX-6000-Ada"), Count: p.Data}
	j.Runtime.Trainer = pick(t, "trainer", "hf", "plain", "trl", "deepspeed", "megatron")
	return j
}

// TestNothingIsSaidWrongly: whatever a format writes of a job, it reads back
// as it was; what it cannot write it leaves out and lists.
func TestNothingIsSaidWrongly(t *testing.T) {
	// A file of a format says these by being one.
	implied := []string{"runtime.trainer", "training.objective"}
	byFormat := map[string][]string{"axolotl": {"training.weights_dtype"}}
	for _, f := range Formats() {
		t.Run(f.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				j := strategies(t)
				if !f.Suits(j) {
					return
				}
				w, err := f.Write(Subject{Job: j, Need: 30 * units.GiB})
				if err != nil {
					t.Fatal(err)
				}
				back, err := f.Read([]byte(w.Text))
				if err != nil {
					t.Fatalf("%v in\n%s", err, w.Text)
				}
				if len(back.Unknown) > 0 {
					t.Fatalf("it wrote keys it does not know: %v", back.Unknown)
				}
				for _, path := range differing(back.Job, j) {
					if !slices.Contains(append(byFormat[f.Name], implied...), path) {
						t.Fatalf("%s: wrote %v, read %v from\n%s", path, settingsOf(j)[path], settingsOf(back.Job)[path], w.Text)
					}
				}
				for _, path := range differing(j, back.Job) {
					if !slices.Contains(w.Unsaid, path) {
						t.Fatalf("%s is lost in silence", path)
					}
				}
			})
		})
	}
}

func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(f, err)
	for _, name := range files {
		data, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, format := range Formats() {
			if r, err := format.Read(data); err == nil && r.Job.Version != 1 {
				t.Fatal("a reading without a version")
			}
		}
		_, _ = Detect(data)
	})
}
