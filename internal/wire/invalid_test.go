package wire

import (
	"bytes"
	"flag"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"memplan/internal/fault"
)

var update = flag.Bool("update", false, "rewrite testdata/invalid.golden")

// badJobs are wrong in every way the decoder knows. What each is told stands
// in testdata/invalid.golden.
var badJobs = []struct{ name, job string }{
	{"empty text", ``},
	{"only a comment", `# nothing`},
	{"not a job", `- 1`},
	{"cut off", `{"model": {"id": "gpt2"`},
	{"two values", `{"model": {"id": "gpt2"}} {}`},
	{"a comma too many", `{"model": {"id": "gpt2"},}`},
	{"two documents", "model: {id: gpt2}\n---\nmodel: {id: gpt2}\n"},
	{"bad indentation", "model:\n  id: gpt2\n training:\n"},
	{"a tab", "model:\n\tid: gpt2\n"},
	{"no model", `{"training": {}}`},
	{"two models", `{"model": {"id": "gpt2", "parameters": "7B"}}`},
	{"model without a name", "model: {implementation: hf}"},
	{"empty config", `{"model": {"config": {}}}`},
	{"architecture without family", `{"model": {"architecture": {"hidden_size": 8}}}`},
	{"unknown keys", `
model: {id: gpt2}
trainig: {}
micro_batch_size: 4
training:
  micro_batchsize: 4
  batchsize: 4
  gradient_checkpoint: true
  tensor: 2
  optimizer: {name: adamw, pagged: true}
  adapter: {r: 8}
quux: 1
modl:
`},
	{"wrong kinds", `
model: {id: gpt2}
training:
  micro_batch_size: "4"
  sequence_length: [2048]
  compile: yes
  optimizer: 3
  loss: [chunked]
  adapter: 16
target: A100
`},
	{"out of range", `
model: {id: gpt2}
training: {micro_batch_size: 0, sequence_length: 1.5, drop_path: 2, image_size: [224], gradient_accumulation_steps: 1e30, method: lora, adapter: {rank: -1, dropout: 1.5}}
target: {count: -3, memory_gib: -1}
`},
	{"not finite", "model: {id: gpt2, parameters: .inf}\ntraining: {adapter: {alpha: .nan}, method: lora}\n"},
	{"not finite in a config", "model: {config: {model_type: gpt2, sizes: [1, .inf]}}\n"},
	{"too large for a float", `{"model": {"config": {"n": 1e999}}, "training": {"micro_batch_size": 1e999}}`},
	{"enums", `
model: {id: gpt2, implementation: HF}
training: {precision: BF16_Mixed, weights_dtype: float8_e4m3, activation_checkpointing: everything, attention: flash-atention, fused_kernels: [rope, rope, rmsnorm], objective: pre-train}
parallelism: {sharding: zero-3, pipeline_schedule: 1F1B2, offload: [optimiser]}
runtime: {trainer: huggingface}
`},
	{"allowed numbers", `{"version": 2, "model": {"id": "gpt2"}, "training": {"optimizer": {"name": "adamw", "state_bits": 6}}, "parallelism": {"fsdp": {"version": 3}}}`},
	{"sizes and counts", `{"model": {"parameters": "7 billion"}, "target": {"memory_gib": "80 XB", "headroom_gib": "-1 GiB", "other_processes_gib": "1e30 GB"}}`},
	{"a number for a version in JSON", `{"model": {"id": "gpt2"}, "runtime": {"framework_version": 2.6}}`},
	{"a name too long", `{"name": "` + strings.Repeat("x", 201) + `", "model": {"id": "gpt2"}}`},
	{"missing in an item", `{"model": {"id": "gpt2"}, "training": {"resident_modules": [{"name": "vae", "parameters": 1}, {"name": "te"}]}}`},
	{"null where none is meant", `{"model": {"id": "gpt2"}, "training": {"micro_batch_size": null, "num_frames": null}}`},
	{"duplicate keys", `{"model": {"id": "gpt2"}, "training": {"micro_batch_size": 1, "micro_batch_size": 2}}`},
	{"duplicate keys, deep", `{"model": {"config": {"a": [0, {"b": {"c": 1, "c": 2}}]}}}`},
	{"duplicate keys in YAML", "model: {id: gpt2}\ntraining:\n  compile: true\n  compile: false\n"},
	{"synonym and key disagree", `{"model": {"id": "gpt2"}, "batch_size": 8, "training": {"micro_batch_size": 4, "per_device_train_batch_size": 4, "bf16": true, "fp16": true}}`},
	{"optimizer name and settings disagree", `{"model": {"id": "gpt2"}, "training": {"optimizer": {"name": "adamw_bnb_8bit", "state_bits": 32}}}`},
	{"synonym of a wrong kind", `{"model": {"id": "gpt2"}, "gradient_checkpointing": "sometimes", "zero_stage": 4}`},
	{"adapter under full", `{"model": {"id": "gpt2"}, "training": {"method": "full", "adapter": {"rank": 16}}}`},
	{"adapter without method", `{"model": {"id": "gpt2"}, "training": {"adapter": {"rank": 16}}}`},
	{"quantised and full", `{"model": {"id": "gpt2"}, "load_in_4bit": true}`},
	{"tensor does not divide heads", `{"model": {"config": {"num_attention_heads": 32}}, "parallelism": {"tensor": 3}}`},
	{"ranks are not count", `{"model": {"id": "gpt2"}, "parallelism": {"data": 2, "tensor": 2, "sharding": "ddp"}, "target": {"count": 8}}`},
	{"count is no multiple", `{"model": {"id": "gpt2"}, "parallelism": {"tensor": 4}, "target": {"count": 6}}`},
	{"experts do not divide", `{"model": {"id": "gpt2"}, "parallelism": {"data": 4, "expert": 3, "sharding": "ddp"}}`},
	{"several ranks without sharding", `{"model": {"id": "gpt2"}, "parallelism": {"data": 4, "sharding": "none", "replicate": 3}}`},
	{"mean above longest", `{"model": {"id": "gpt2"}, "training": {"sequence_lengths": {"longest": 100, "mean": 200}}}`},
	{"a wrong method hides what follows from it", `{"model": {"id": "gpt2"}, "training": {"method": "lorra", "adapter": {"rank": 16}}}`},
	{"wrong and contradictory at once", `{"model": {"config": {"num_attention_heads": 32}}, "training": {"precision": "fp64"}, "parallelism": {"tensor": 3}}`},
}

// TestWhatBadJobsAreTold compares every message with the golden file.
func TestWhatBadJobsAreTold(t *testing.T) {
	var told bytes.Buffer
	for _, tt := range badJobs {
		_, err := Decode([]byte(tt.job))
		require.Error(t, err, tt.name)
		require.Equal(t, fault.Invalid, fault.KindOf(err), tt.name)
		var invalid *Invalid
		require.ErrorAs(t, err, &invalid, tt.name)
		require.Equal(t, invalid.Fields, fault.FieldsOf(err), tt.name)
		require.Len(t, invalid.At, len(invalid.Fields), tt.name)
		fmt.Fprintf(&told, "%s\n", tt.name)
		for i, f := range invalid.Fields {
			fmt.Fprintf(&told, "\t%s: %s\n", invalid.Location(i), f)
		}
	}
	const golden = "testdata/invalid.golden"
	if *update {
		require.NoError(t, os.WriteFile(golden, told.Bytes(), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(string(want), told.String()))
}

func TestBadForms(t *testing.T) {
	tests := []struct {
		name   string
		values url.Values
		want   []string
	}{
		{"unknown key", url.Values{"m": {"gpt2"}, "bs": {"1"}, "training.precison": {"fp32"}}, []string{
			"training.precison: got an unknown key, want a key of training (nearest: training.precision)",
			"bs: got an unknown key, want a key of the job",
		}},
		{"text for a number", url.Values{"m": {"gpt2"}, "mb": {"four"}}, []string{
			`training.micro_batch_size: got "four", want a whole number, 1 or more`,
		}},
		{"several values for one", url.Values{"m": {"gpt2"}, "mb": {"1", "2"}}, []string{
			"training.micro_batch_size: got a list, want a whole number, 1 or more",
		}},
		{"short key and path disagree", url.Values{"m": {"gpt2"}, "mb": {"1"}, "training.micro_batch_size": {"2"}}, []string{
			`mb: got "1", want the same as training.micro_batch_size, which says "2", or only one of the two keys`,
		}},
		{"broken config", url.Values{"config": {`{"a":`}}, []string{`model.config: got "{\"a\":", want an object`}},
		{"zero stage", url.Values{"m": {"gpt2"}, "zero": {"4"}}, []string{`zero: got "4", want 0, 1, 2 or 3`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := DecodeValues(tt.values)
			var got []string
			for _, f := range fault.FieldsOf(err) {
				got = append(got, f.String())
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// TestHostileText ends in an error, soon.
func TestHostileText(t *testing.T) {
	bomb := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'k'; c++ {
		p := c - 1
		bomb += fmt.Sprintf("%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", c, c, p, p, p, p, p, p, p, p, p)
	}
	tests := []struct {
		name, text string
		kind       fault.Kind
	}{
		{"deep lists", strings.Repeat("[", 100_000), fault.Invalid},
		{"deep objects", strings.Repeat(`{"a":`, 100_000), fault.Invalid},
		{"deep YAML", strings.Repeat("- ", 9_000) + "x", fault.Invalid},
		{"alias bomb", bomb, fault.Invalid},
		{"alias of itself", "model: &m {id: x, y: *m}\n", fault.Invalid},
		{"not UTF-8", "{\"model\": {\"id\": \"\xff\"}}", fault.Invalid},
		{"too large", strings.Repeat(" ", MaxBytes+1), fault.TooLarge},
		{"nothing but faults", `{"model":{"id":"x"}` + strings.Repeat(`,"zzzz":1`, 50_000) + `}`, fault.Invalid},
		{"very many keys", manyKeys(60_000), fault.Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Decode([]byte(tt.text))
			require.Error(t, err)
			require.Equal(t, tt.kind, fault.KindOf(err), err)
			require.LessOrEqual(t, len(fault.FieldsOf(err)), maxFaults)
			require.Less(t, len(err.Error()), 20_000)
		})
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	b.WriteString(`{"model":{"id":"x"}`)
	for i := range n {
		fmt.Fprintf(&b, `,"unknown_key_%d":1`, i)
	}
	return b.String() + "}"
}
