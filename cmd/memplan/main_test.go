package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/api"
	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/obs"
	"memplan/internal/planner"
	"memplan/internal/units"
)

var update = flag.Bool("update", false, "write the golden files anew")

// engine wants 30 GiB and 10 more a sample; a job that is required to use
// between 88 and 100 % of its card is tight.
func engine(job spec.Job, d spec.Device, _ spec.Coefficients) (*estimator.Estimate, error) {
	switch job.Name {
	case "broken":
		return nil, errors.New("a nil map")
	case "refused":
		return nil, fault.New(fault.Forbidden, "The policy of this place refuses the job.")
	}
	micro := units.Bytes(max(1, job.Training.MicroBatchSize))
	required := 30*units.GiB + micro*10*units.GiB
	verdict, sentence := estimator.Fits, "Fits"
	switch {
	case required > d.Usable():
		verdict, sentence = estimator.Exceeds, "Does not fit"
	case required > d.Usable()*88/100:
		verdict, sentence = estimator.Tight, "Tight"
	}
	third := (required - 500*units.MiB) / 3
	return &estimator.Estimate{
		Version: 1, Job: job, Summary: sentence + ": needs " + required.String() + " of " + d.Usable().String() + ".",
		Peak: estimator.Peak{
			Allocated: 3 * third, Reserved: 3 * third, Process: required, Required: required,
			Interval: estimator.Interval{Low: required - units.GiB, High: required + units.GiB, Level: 0.9, Of: "required_bytes", Source: "prior"},
		},
		Breakdown: []estimator.Share{
			{Category: "parameters", Bytes: third},
			{Category: "gradients", Bytes: third},
			{Category: "activations", Bytes: third},
			{Category: "logits"},
			{Category: "conv_workspace", Bytes: required - 3*third},
		},
		Phases: []estimator.Phase{
			{Name: "load", PeakAllocated: third, PeakReserved: third, EndAllocated: third},
			{Name: "first_step", PeakAllocated: 3 * third, PeakReserved: 3 * third, EndAllocated: 2 * third},
		},
		Target: estimator.TargetAnswer{GPU: d.Key, Usable: d.Usable(), Verdict: verdict},
		Assumptions: []estimator.Assumption{
			{Path: "training.attention", Value: "sdpa", Why: "the default of transformers 5.24", Decides: true},
			{Path: "training.activation_checkpointing", Value: map[string]any{"mode": "none"}, Why: "the default of the trainer", Decides: true},
			{Path: "runtime.trainer", Value: "hf", Why: "none was named"},
		},
		Warnings: []estimator.Warning{{Code: "no_effect", Text: "num_classes has nothing to act on"}},
	}, nil
}

// result is what a run of the command left.
type result struct {
	code           int
	stdout, stderr string
}

// memplan runs the command.
func memplan(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, surroundings{
		getenv: func(string) string { return "" }, stdin: strings.NewReader(stdin),
		stdout: &stdout, stderr: &stderr, engine: engine,
	})
	return result{code, stdout.String(), stderr.String()}
}

// matches compares text with a golden file. A run that fails leaves what it
// got beside it.
func matches(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	if string(want) != got {
		require.NoError(t, os.WriteFile(filepath.Join("testdata", ".got-"+name), []byte(got), 0o644))
	}
	require.Equal(t, string(want), got)
}

func TestGolden(t *testing.T) {
	tests := []struct {
		name, args string
		code       int
	}{
		{name: "estimate", args: "estimate testdata/job.yaml"},
		{name: "estimate-json", args: "estimate --json testdata/job.yaml"},
		{name: "estimate-exceeds", args: "estimate testdata/job.yaml --set training.micro_batch_size=9"},
		{name: "estimate-wrong", args: "estimate testdata/wrong.yaml", code: 2},
		{name: "estimate-set-wrong", args: "estimate testdata/job.yaml --set training.micro_batch=9 --set target.gpu=H999 --set x", code: 2},
		{name: "estimate-no-file", args: "estimate testdata/none.yaml", code: 2},
		{name: "check-fits", args: "check testdata/job.yaml"},
		{name: "check-tight", args: "check testdata/job.yaml --set training.micro_batch_size=4"},
		{name: "check-tight-strict", args: "check --strict testdata/job.yaml --set training.micro_batch_size=4", code: 1},
		{name: "check-exceeds", args: "check testdata/job.yaml --set training.micro_batch_size=8", code: 1},
		{name: "fits", args: "fits testdata/job.yaml --gpu A100-SXM4-80GB,H200-SXM-141GB,T4"},
		{name: "colocate", args: "colocate testdata/job.yaml testdata/job.yaml --gpu H200-SXM-141GB"},
		{name: "colocate-exceeds", args: "colocate testdata/job.yaml testdata/job.yaml testdata/job.yaml"},
		{name: "colocate-one", args: "colocate testdata/job.yaml", code: 2},
		{name: "import", args: "import testdata/axolotl.yaml"},
		{name: "check-from", args: "check testdata/axolotl.yaml --from axolotl --set model.id=meta-llama/Llama-3.1-8B"},
		{name: "import-wrong", args: "import testdata/axolotl.yaml --from axolot", code: 2},
		{name: "import-unknown", args: "import testdata/help.stdout", code: 2},
		{name: "export", args: "export testdata/job.yaml --to llamafactory"},
		{name: "export-unfit", args: "export testdata/job.yaml --to deepspeed", code: 2},
		{name: "help-export", args: "export --help"},
		{name: "models", args: "models llama-3.1 --limit 3"},
		{name: "help", args: "--help"},
		{name: "help-check", args: "check --help"},
		{name: "no-command", args: "", code: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := memplan(t, "", strings.Fields(tt.args)...)
			matches(t, tt.name+".stdout", got.stdout)
			matches(t, tt.name+".stderr", got.stderr)
			require.Equal(t, tt.code, got.code)
		})
	}
}

func TestGPUs(t *testing.T) {
	got := memplan(t, "", "gpus")
	require.Equal(t, 0, got.code)
	require.Regexp(t, `^CARD +NAME +ARCHITECTURE +SOLD AS GB +USABLE GiB +USABLE IS\n`, got.stdout)
	require.Regexp(t, `\nA100-SXM4-80GB +A100-SXM4-80GB +Ampere +80 +79\.15 `, got.stdout)
}

func TestExitCodes(t *testing.T) {
	named := func(name string) string { return "name: " + name + "\nmodel: {id: meta-llama/Llama-3.1-8B}\n" }
	tests := []struct {
		name, stdin string
		args        []string
		want        int
	}{
		{name: "fits", stdin: named("fine"), args: []string{"check", "-"}, want: 0},
		{name: "estimate of what exceeds", stdin: named("fine"), args: []string{"estimate", "-", "--gpu", "T4"}, want: 0},
		{name: "check of what exceeds", stdin: named("fine"), args: []string{"check", "-", "--gpu", "T4"}, want: 1},
		{name: "no YAML", stdin: "{", args: []string{"check", "-"}, want: 2},
		{name: "unknown model", stdin: "model: {id: nobody/nothing}", args: []string{"check", "-"}, want: 2},
		{name: "unknown flag", stdin: named("fine"), args: []string{"check", "-", "--colour"}, want: 2},
		{name: "nobody listens", stdin: named("fine"), args: []string{"check", "-", "--server", "127.0.0.1:1"}, want: 3},
		{name: "refused", stdin: named("refused"), args: []string{"check", "-"}, want: 4},
		{name: "defect", stdin: named("broken"), args: []string{"check", "-"}, want: 70},
		{name: "version", args: []string{"--version"}, want: 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := memplan(t, tt.stdin, tt.args...)
			require.Equal(t, tt.want, got.code, got.stderr)
			require.Equal(t, tt.want > 1, got.stderr != "", got.stderr)
		})
	}
}

func TestEveryKindHasAnExitCode(t *testing.T) {
	require.Len(t, exitCodes, int(fault.TooLarge)+1)
	for kind, code := range exitCodes {
		require.NotZero(t, code, fault.Kind(kind).String())
	}
}

// serve is a service on a free port.
func serve(t *testing.T) string {
	t.Helper()
	tables, err := catalog.Open()
	require.NoError(t, err)
	srv := httptest.NewServer(api.New(api.Config{
		Planner: planner.New(planner.Config{Catalog: tables, Engine: engine}),
		Log:     slog.New(slog.DiscardHandler), Metrics: obs.NewMetrics("test"),
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestServerAnswersAsOffline(t *testing.T) {
	server := serve(t)
	tests := []string{
		"estimate testdata/job.yaml --json",
		"estimate testdata/job.yaml",
		"check testdata/job.yaml",
		"check testdata/job.yaml --set training.micro_batch_size=8",
		"check testdata/wrong.yaml",
		"check testdata/job.yaml --gpu H999",
		"fits testdata/job.yaml --gpu A100-SXM4-80GB,T4",
		"colocate testdata/job.yaml testdata/job.yaml",
		"colocate testdata/job.yaml testdata/job.yaml --json",
		"models llama-3.1 --limit 3",
		"gpus",
	}
	for _, args := range tests {
		t.Run(args, func(t *testing.T) {
			offline := memplan(t, "", strings.Fields(args)...)
			remote := memplan(t, "", strings.Fields(args+" --server "+server)...)
			require.Equal(t, offline, remote)
		})
	}
}

func TestSomethingElseListens(t *testing.T) {
	srv := httptest.NewServer(nil)
	defer srv.Close()
	got := memplan(t, "", "check", "testdata/job.yaml", "--server", srv.URL)
	require.Equal(t, exitUnreachable, got.code)
	require.Contains(t, got.stderr, "404")
}

func TestOverride(t *testing.T) {
	tests := []struct {
		name, setting string
		file          string // in place of job.yaml
		got           func(spec.Job) any
		expected      any
	}{
		{name: "number", setting: "training.micro_batch_size=8", expected: 8, got: func(j spec.Job) any { return j.Training.MicroBatchSize }},
		{name: "text", setting: "target.gpu=T4", expected: "T4", got: func(j spec.Job) any { return j.Target.GPU }},
		{name: "size", setting: "target.headroom_gib=2GiB", expected: 2 * units.GiB, got: func(j spec.Job) any { return j.Target.HeadroomGiB }},
		{name: "object", setting: `training.optimizer={"name":"adamw","paged":true}`, expected: true, got: func(j spec.Job) any { return j.Training.Optimizer.Paged }},
		{name: "value with an equals sign", setting: "name=a=b", expected: "a=b", got: func(j spec.Job) any { return j.Name }},
		{name: "a part of what the file says short", file: "model: {id: gpt2}\ntraining: {sequence_length: 4096, optimizer: adamw}", setting: "training.optimizer.paged=true", expected: "adamw", got: func(j spec.Job) any { return j.Training.Optimizer.Name }},
		{name: "the whole of what the file says long", file: "model: {id: gpt2}\ntraining: {sequence_length: 4096, optimizer: {name: adamw, paged: true}}", setting: "training.optimizer=sgd", expected: spec.Optimizer{Name: "sgd"}, got: func(j spec.Job) any { return j.Training.Optimizer }},
		{name: "a key of a config", file: "model: {config: {model_type: gpt2, n_layer: 12}}\ntraining: {sequence_length: 4096}", setting: "model.config.n_layer=2", expected: map[string]any{"model_type": "gpt2", "n_layer": 2.0}, got: func(j spec.Job) any { return j.Model.Config }},
		{name: "short key", setting: "mb=8", expected: 8, got: func(j spec.Job) any { return j.Training.MicroBatchSize }},
		{name: "another tool's key for what the file says", setting: "per_device_train_batch_size=8", expected: 8, got: func(j spec.Job) any { return j.Training.MicroBatchSize }},
		{name: "another tool's key", setting: "gradient_checkpointing=true", expected: "full", got: func(j spec.Job) any { return j.Training.Checkpointing.Mode }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := jobInput{File: "testdata/job.yaml", Set: []string{tt.setting}}
			if tt.file != "" {
				in.File = "-"
			}
			job, err := in.decode(&session{surroundings: surroundings{stdin: strings.NewReader(tt.file)}})
			require.NoError(t, err)
			require.Equal(t, tt.expected, tt.got(job))
			require.Equal(t, 4096, job.Training.SequenceLength, "what the file says stays")
		})
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var stderr bytes.Buffer
	code := run(ctx, []string{"check", "testdata/job.yaml"}, surroundings{
		getenv: func(string) string { return "" }, stdout: &bytes.Buffer{}, stderr: &stderr, engine: engine,
	})
	require.NotEqual(t, exitFits, code, "a job that nobody answered for may not start")
}
