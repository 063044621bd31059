package wire

import (
	"encoding/json"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"memplan/internal/units"
)

// TestSpellings decodes what people write and requires the normal form.
func TestSpellings(t *testing.T) {
	tests := []struct{ name, job, want string }{
		{"transformers' names", `
model: {id: gpt2}
per_device_train_batch_size: 4
max_seq_length: 2048
gradient_checkpointing: true
bf16: true
optim: adamw_torch_fused
attn_implementation: flash_attention_2
torch_dtype: bfloat16
`, `{"version":1,"model":{"id":"gpt2"},"training":{"precision":"bf16-mixed","weights_dtype":"bf16",
"optimizer":{"name":"adamw","implementation":"fused","library":"torch"},"micro_batch_size":4,"sequence_length":2048,
"activation_checkpointing":"full","attention":"flash"}}`},
		{
			"inside training", `{"model": {"id": "gpt2"}, "training": {"batch_size": 2, "seq_len": 128, "fp16": true, "bf16": false}}`,
			`{"version":1,"model":{"id":"gpt2"},"training":{"precision":"fp16-mixed","micro_batch_size":2,"sequence_length":128}}`,
		},
		{
			"QLoRA", `{"model": {"id": "gpt2"}, "load_in_4bit": true, "lora_r": 16, "lora_alpha": 32, "optim": "paged_adamw_8bit"}`,
			`{"version":1,"model":{"id":"gpt2"},"training":{"method":"lora","adapter":{"rank":16,"alpha":32},"quantization":"nf4",
"optimizer":{"name":"adamw","library":"bitsandbytes","state_bits":8,"paged":true}}}`,
		},
		{"Lightning's precisions", `{"model": {"id": "gpt2"}, "training": {"precision": 16}}`, `{"version":1,"model":{"id":"gpt2"},"training":{"precision":"fp16-mixed"}}`},
		{"bf16-true", `{"model": {"id": "gpt2"}, "training": {"precision": "bf16-true"}}`, `{"version":1,"model":{"id":"gpt2"},"training":{"precision":"bf16"}}`},
		{"32-true", `{"model": {"id": "gpt2"}, "training": {"precision": "32-true"}}`, `{"version":1,"model":{"id":"gpt2"},"training":{"precision":"fp32"}}`},
		{"zero_stage", `{"model": {"id": "gpt2"}, "zero_stage": 3}`, `{"version":1,"model":{"id":"gpt2"},"parallelism":{"sharding":"zero3"}}`},
		{
			"synonym and key agree", `{"model": {"id": "gpt2"}, "batch_size": 4, "gradient_checkpointing": true, "training": {"micro_batch_size": 4, "activation_checkpointing": {"mode": "full", "reentrant": false}}}`,
			`{"version":1,"model":{"id":"gpt2"},"training":{"micro_batch_size":4,"activation_checkpointing":{"mode":"full","reentrant":false}}}`,
		},
		{
			"a name beside an object", `{"model": {"id": "gpt2"}, "optim": "adamw_8bit", "training": {"optimizer": {"paged": true}}}`,
			`{"version":1,"model":{"id":"gpt2"},"training":{"optimizer":{"name":"adamw","library":"bitsandbytes","state_bits":8,"paged":true}}}`,
		},
		{
			"long forms that say no more", `{"model": {"id": "gpt2"}, "training": {"optimizer": {"name": "sgd"}, "loss": {"kind": "chunked"}, "attention": {"kernel": "sdpa"}, "method": "lora", "quantization": {"type": "nf4"}, "ema": {}}}`,
			`{"version":1,"model":{"id":"gpt2"},"training":{"method":"lora","quantization":"nf4","optimizer":"sgd","attention":"sdpa","loss":"chunked","ema":true}}`,
		},
		{
			"nothing is absent", `{"model": {"id": "gpt2"}, "training": {"quantization": "none", "qat": "none", "ema": false, "losses": [], "num_frames": null, "grad_scaler": "auto"}, "parallelism": {"offload": "none", "zero": {"overlap_comm": false}}, "labels": {}}`,
			`{"version":1,"model":{"id":"gpt2"},"parallelism":{"zero":{"overlap_comm":false}}}`,
		},
		{
			"units", `{"model": {"parameters": "7B"}, "target": {"memory_gib": "80 GB", "headroom_gib": "512MiB", "other_processes_gib": 1.5}}`,
			`{"version":1,"model":{"parameters":7000000000},"target":{"memory_gib":74.505805969,"other_processes_gib":1.5,"headroom_gib":0.5}}`,
		},
		{
			"whole numbers as floats", `{"model": {"id": "gpt2"}, "training": {"micro_batch_size": 4.0, "sequence_length": 2e3}}`,
			`{"version":1,"model":{"id":"gpt2"},"training":{"micro_batch_size":4,"sequence_length":2000}}`,
		},
		{
			"merges", "model: {id: gpt2}\ntraining:\n  resident_modules:\n  - &v {name: vae, parameters: 1}\n  - {<<: *v, name: te}\n",
			`{"version":1,"model":{"id":"gpt2"},"training":{"resident_modules":[{"name":"vae","parameters":1},{"name":"te","parameters":1}]}}`,
		},
		{
			"plain versions", "model: {id: gpt2}\nruntime:\n  framework_version: 2.10\n  library_versions: {transformers: 4.50}\n",
			`{"version":1,"model":{"id":"gpt2"},"runtime":{"framework_version":"2.10","library_versions":{"transformers":"4.50"}}}`,
		},
		{
			"anchors", "model: {id: gpt2}\ntraining: {micro_batch_size: &n 0x10, gradient_accumulation_steps: *n, sequence_length: 1_024}\n",
			`{"version":1,"model":{"id":"gpt2"},"training":{"micro_batch_size":16,"gradient_accumulation_steps":16,"sequence_length":1024}}`,
		},
		{"empty sections", "model: {id: gpt2}\ntraining:\ntarget:\n  gpu:\n", `{"version":1,"model":{"id":"gpt2"}}`},
		{"no head", `{"model": {"id": "gpt2"}, "training": {"num_classes": 0}}`, `{"version":1,"model":{"id":"gpt2"},"training":{"num_classes":0}}`},
		{
			"a config's nulls stay", `{"model": {"config": {"model_type": "llama", "rope_scaling": null, "n": [1, null]}}}`,
			`{"version":1,"model":{"config":{"model_type":"llama","n":[1,null],"rope_scaling":null}}}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			job, err := Decode([]byte(tt.job))
			require.NoError(t, err)
			got, err := Encode(job)
			require.NoError(t, err)
			require.Equal(t, strings.ReplaceAll(tt.want, "\n", ""), string(got))
			requireRoundTrips(t, job)
		})
	}
}

func TestSizesAreBytes(t *testing.T) {
	job, err := DecodeJSON([]byte(`{"model": {"id": "gpt2"}, "target": {"memory_gib": "80 GB", "headroom_gib": 0.5, "other_processes_gib": "12GiB"}}`))
	require.NoError(t, err)
	require.Equal(t, 80*units.GB, job.Target.MemoryGiB)
	require.Equal(t, 512*units.MiB, job.Target.HeadroomGiB)
	require.Equal(t, 12*units.GiB, job.Target.OtherProcessesGiB)
}

// TestForms decodes forms as people and pages send them.
func TestForms(t *testing.T) {
	tests := []struct {
		name, query, want string
	}{
		{
			"short keys", "m=meta-llama/Llama-3.1-8B&gpu=H100-SXM5-80GB&n=8&seq=8192&mb=1&zero=3&ac=full",
			`{"version":1,"model":{"id":"meta-llama/Llama-3.1-8B"},"training":{"micro_batch_size":1,"sequence_length":8192,"activation_checkpointing":"full"},"parallelism":{"sharding":"zero3"},"target":{"gpu":"H100-SXM5-80GB","count":8}}`,
		},
		{
			"dotted paths", "model.id=gpt2&training.optimizer=adamw&training.optimizer.implementation=fused&training.compile=on&runtime.library_versions.transformers=4.50",
			`{"version":1,"model":{"id":"gpt2"},"training":{"optimizer":{"name":"adamw","implementation":"fused"},"compile":true},"runtime":{"library_versions":{"transformers":"4.50"}}}`,
		},
		{
			"short key beside a path", "m=gpt2&opt=adamw_torch&training.optimizer.in_backward=true",
			`{"version":1,"model":{"id":"gpt2"},"training":{"optimizer":{"name":"adamw","implementation":"foreach","library":"torch","in_backward":true}}}`,
		},
		{"lora implies the method", "m=gpt2&lora=16&targets=q_proj,v_proj", `{"version":1,"model":{"id":"gpt2"},"training":{"method":"lora","adapter":{"rank":16,"target_modules":["q_proj","v_proj"]}}}`},
		{"unless one is given", "m=gpt2&lora=16&targets=all-linear&method=dora", `{"version":1,"model":{"id":"gpt2"},"training":{"method":"dora","adapter":{"rank":16,"target_modules":"all-linear"}}}`},
		{"config as text", `config={"model_type":"llama","hidden_size":64}&img=224x224`, `{"version":1,"model":{"config":{"hidden_size":64,"model_type":"llama"}},"training":{"image_size":[224,224]}}`},
		{"empty inputs say nothing", "m=gpt2&mb=&training.teacher=none&seq=%20&off=none", `{"version":1,"model":{"id":"gpt2"}}`},
		{"several boxes of one name", "m=gpt2&off=optimizer&off=parameters&fused=rope,swiglu", `{"version":1,"model":{"id":"gpt2"},"training":{"fused_kernels":["rope","swiglu"]},"parallelism":{"offload":["optimizer","parameters"]}}`},
		{"labels keep their dots", "m=gpt2&labels.team.name=vision&labels.on=yes", `{"version":1,"labels":{"on":"yes","team.name":"vision"},"model":{"id":"gpt2"}}`},
		{"synonyms", "m=gpt2&bf16=true&training.per_device_train_batch_size=3", `{"version":1,"model":{"id":"gpt2"},"training":{"precision":"bf16-mixed","micro_batch_size":3}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			values, err := url.ParseQuery(tt.query)
			require.NoError(t, err)
			job, err := DecodeValues(values)
			require.NoError(t, err)
			got, err := Encode(job)
			require.NoError(t, err)
			require.Equal(t, tt.want, string(got))
			requireRoundTrips(t, job)
		})
	}
}

func TestQueryIsShort(t *testing.T) {
	job, err := DecodeJSON([]byte(`{"model": {"id": "meta-llama/Llama-3.1-8B"}, "training": {"micro_batch_size": 1, "sequence_length": 8192, "optimizer": {"name": "adamw", "implementation": "fused"}},
		"target": {"gpu": "H100-SXM5-80GB", "count": 8}, "parallelism": {"data": 8, "sharding": "fsdp"}}`))
	require.NoError(t, err)
	query, err := EncodeQuery(job)
	require.NoError(t, err)
	require.Equal(t, "m=meta-llama/Llama-3.1-8B&training.optimizer.name=adamw&training.optimizer.implementation=fused&mb=1&seq=8192&dp=8&shard=fsdp&gpu=H100-SXM5-80GB&n=8", query)
}

func TestIsKey(t *testing.T) {
	for _, key := range []string{"m", "zero", "training.compile", "target.gpu", "batch_size", "labels.x"} {
		require.True(t, IsKey(key), key)
	}
	for _, key := range []string{"u", "view", "page.size", ""} {
		require.False(t, IsKey(key), key)
	}
}

// sample is a value of a field that is not its default.
func sample(f Field) *node {
	if len(f.Examples) > 0 {
		return &node{kind: text, loose: loose, text: f.Examples[0]}
	}
	for _, e := range f.Enum {
		if e != f.Default && e != "none" && e != "auto" {
			return &node{kind: text, loose: loose, text: e}
		}
	}
	switch {
	case f.Path == "target.compute_capability":
		return &node{kind: text, text: "8.0"}
	case strings.HasPrefix(f.Type, "boolean"):
		return &node{kind: boolean, text: strconv.FormatBool(f.Default != "true")}
	case strings.HasSuffix(f.Type, "number"), strings.HasPrefix(f.Type, "number"):
		return &node{kind: number, text: "1"}
	case f.Type == "list":
		return sampleList(f.Path)
	case f.Type == "object" && f.Path == "model.architecture":
		return &node{kind: text, loose: loose, text: `{"family":"llama"}`}
	case f.Type == "object":
		return &node{kind: text, loose: loose, text: `{"k":"v"}`}
	}
	if strings.Contains(f.Type, " or object") && f.Enum != nil {
		return nil // its long form is a sample of its own
	}
	return &node{kind: text, text: "some"}
}

func sampleList(path string) *node {
	for suffix, s := range map[string]string{
		"resident_modules": `[{"name":"vae","parameters":1}]`, "also_resident": `[{"name":"vae","parameters":1}]`,
		"size": "[32,32]", "shape": "[4,32,32]", "hidden": "[64]",
	} {
		if strings.HasSuffix(path, suffix) {
			return &node{kind: text, loose: loose, text: s}
		}
	}
	return &node{kind: text, loose: loose, text: `["a"]`}
}

// TestEveryKeyReachesTheJob sets each key of the schema alone: the normal form
// shows it, so no key is read and forgotten.
func TestEveryKeyReachesTheJob(t *testing.T) {
	companions := map[string]string{
		"training.quantization": "type", "training.qat": "weights", "training.multi_crop.global": "size", "training.multi_crop.local": "size",
	}
	byPath := map[string]Field{}
	for _, f := range Fields() {
		byPath[f.Path] = f
	}
	for _, f := range Fields() {
		value := sample(f)
		if f.Path == "version" || value == nil {
			continue
		}
		t.Run(f.Path, func(t *testing.T) {
			root := &node{kind: object}
			c := &check{d: standard(), found: &Invalid{}}
			if !strings.HasPrefix(f.Path, "model.") || strings.HasPrefix(f.Path, "model.impl") {
				c.descend(root, standard().root, "model.id", &node{kind: text, text: "gpt2"})
			}
			if strings.HasPrefix(f.Path, "training.adapter") || strings.HasPrefix(f.Path, "training.quantization") {
				c.descend(root, standard().root, "training.method", &node{kind: text, text: "lora"})
			}
			c.descend(root, standard().root, f.Path, value)
			if strings.HasSuffix(f.Path, ".count") && strings.Contains(f.Path, "multi_crop") {
				c.descend(root, standard().root, strings.TrimSuffix(f.Path, "count")+"size", &node{kind: text, loose: loose, text: "8,8"})
			}
			for parent, key := range companions {
				if at := parent + "." + key; strings.HasPrefix(f.Path, parent+".") && f.Path != at {
					c.descend(root, standard().root, at, sample(byPath[at]))
				}
			}
			if parent, isSize := strings.CutSuffix(f.Path, ".size"); isSize {
				c.descend(root, standard().root, parent+".count", &node{kind: number, text: "2"})
			}
			job, err := c.job(root)
			require.NoError(t, err)
			n, err := treeOf(job)
			require.NoError(t, err)
			require.True(t, shows(n, f.Path), "%s is not in %s", f.Path, n.appendJSON(nil))
			requireRoundTrips(t, job)
		})
	}
}

// shows reports whether a normal form has a path, or the short form of the
// object it is in.
func shows(n *node, path string) bool {
	for key := range strings.SplitSeq(path, ".") {
		if n.kind != object {
			return true
		}
		if n = n.get(key); n == nil {
			return false
		}
	}
	return true
}

func TestSchemaIsTheServedOne(t *testing.T) {
	require.True(t, json.Valid(Schema))
	_, err := NewDecoder(Schema)
	require.NoError(t, err)
	_, err = NewDecoder([]byte(`{"type": "object", "patternProperties": {}}`))
	require.ErrorContains(t, err, "the keyword is not known")
}

func TestAliasesAreKeysOfTheFormat(t *testing.T) {
	known, seen := map[string]bool{}, map[string]bool{}
	for _, f := range Fields() {
		known[f.Path] = true
	}
	for _, a := range Aliases() {
		require.True(t, known[a.Path], a.Path)
		require.False(t, seen[a.Key] || seen[a.Path], a.Key)
		seen[a.Key], seen[a.Path] = true, true
		require.NotEmpty(t, a.Help)
		require.NotContains(t, standard().synonyms, a.Key)
	}
	for _, s := range Synonyms() {
		require.True(t, known[s.Path], s.Path)
	}
	for _, table := range []map[string]string{shorts, nothings} {
		for path := range table {
			require.True(t, known[path], path)
		}
	}
	for path := range spellings {
		require.True(t, known[path], path)
	}
}

func TestWarnings(t *testing.T) {
	tests := []struct {
		name, job string
		want      []string
	}{
		{"nothing to say", `{"model": {"id": "gpt2"}, "training": {"attention": "flash"}}`, nil},
		{"attention on a ResNet", `{"model": {"id": "torchvision/resnet50"}, "training": {"attention": "flash", "sequence_length": 3}}`, []string{"training.attention", "training.sequence_length"}},
		{
			"a schedule without a pipeline", `{"model": {"id": "gpt2"}, "parallelism": {"pipeline_schedule": "gpipe", "virtual_pipeline": 2, "context_comm": "a2a", "sequence_parallel": true}}`,
			[]string{"parallelism.pipeline_schedule", "parallelism.virtual_pipeline", "parallelism.context_comm", "parallelism.sequence_parallel"},
		},
		{"settings of another sharding", `{"model": {"id": "gpt2"}, "parallelism": {"data": 2, "sharding": "ddp", "fsdp": {"version": 1}, "zero": {"overlap_comm": true}}}`, []string{"parallelism.fsdp", "parallelism.zero"}},
		{"settings of another framework", `{"model": {"id": "gpt2"}, "runtime": {"framework": "jax", "allocator": {"expandable_segments": true}, "tensorflow": {"memory_growth": true}}}`, []string{"runtime.allocator", "runtime.tensorflow"}},
		{"fp8 without fp8", `{"model": {"id": "gpt2"}, "training": {"fp8": {"recipe": "rowwise"}, "modules_to_train": ["head"]}}`, []string{"training.fp8", "training.modules_to_train"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			job, err := DecodeJSON([]byte(tt.job))
			require.NoError(t, err)
			var got []string
			for _, w := range Warnings(job) {
				require.Equal(t, NoEffect, w.Code)
				require.Contains(t, w.Text, w.Path)
				got = append(got, w.Path)
			}
			require.Empty(t, cmp.Diff(tt.want, got))
		})
	}
}

// BenchmarkDecode reads a job of a typical size.
func BenchmarkDecode(b *testing.B) {
	rows, err := os.ReadFile("testdata/jobs.jsonl")
	require.NoError(b, err)
	var row struct{ Job json.RawMessage }
	for line := range strings.SplitSeq(string(rows), "\n") {
		require.NoError(b, json.Unmarshal([]byte(line), &row))
		if len(row.Job) > 1300 && len(row.Job) < 1700 {
			break
		}
	}
	b.SetBytes(int64(len(row.Job)))
	b.ReportAllocs()
	for b.Loop() {
		_, err := DecodeJSON(row.Job)
		require.NoError(b, err)
	}
}
