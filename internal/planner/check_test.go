package planner_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// resolved is a job with the settings that remedies look at filled in, as the
// estimator's answers have them.
func resolved() spec.Job {
	job := gpt2()
	job.Target.GPU = "A100-SXM4-80GB"
	job.Training = spec.Training{
		Method: "full", Precision: spec.PrecisionFP32, WeightsDType: spec.FP32, MicroBatchSize: 8, GradAccumSteps: 2,
		Optimizer: spec.Optimizer{Name: "adamw", Implementation: "foreach", Library: "torch"},
		Attention: spec.Attention{Kernel: "eager"}, Checkpointing: spec.Checkpointing{Mode: "none"},
	}
	return job
}

func TestCheckDecides(t *testing.T) {
	for _, test := range []struct {
		name     string
		required units.Bytes
		verdict  estimator.Verdict
		decision planner.Decision
	}{
		{"fits", 50 * gib, estimator.Fits, planner.Allow},
		{"tight", 79 * gib, estimator.Tight, planner.Warn},
		{"exceeds", 200 * gib, estimator.Exceeds, planner.Deny},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, e := newPlanner(t, planner.Config{})
			e.required = func(spec.Job) units.Bytes { return test.required }
			c, err := p.Check(t.Context(), resolved())
			require.NoError(t, err)
			require.Equal(t, test.decision, c.Decision)
			require.Equal(t, test.verdict, c.Verdict)
			require.Equal(t, c.Estimate.Summary, c.Summary)
			require.Equal(t, "default", c.Policy.Name)
			require.NotEmpty(t, c.Policy.Rule)
			require.Equal(t, []planner.Fix{}, c.Fixes, "nothing helps, and a list is no null")
		})
	}
}

func TestCheckOfAWrongJob(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{})
	_, err := p.Check(t.Context(), spec.Job{})
	require.Equal(t, fault.Invalid, fault.KindOf(err))
}

// cost is the fake job's bytes: what each remedy saves is known.
func cost(savings map[string]units.Bytes) func(spec.Job) units.Bytes {
	return func(j spec.Job) units.Bytes {
		t, b := j.Training, 100*gib
		for name, applied := range map[string]bool{
			"sdpa":  t.Attention.Kernel == "sdpa",
			"flash": t.Attention.Kernel == "flash",
			"full":  t.Checkpointing.Mode == "full",
			"mixed": t.Precision.Mixed() != "",
			"8bit":  t.Optimizer.StateBits == 8,
			"bf16":  t.WeightsDType == spec.BF16,
		} {
			if applied {
				b -= savings[name]
			}
		}
		for m := t.MicroBatchSize; m < 8; m *= 2 {
			b -= savings["half"]
		}
		return b
	}
}

func TestFixes(t *testing.T) {
	change := func(path string, from, to any) planner.Change { return planner.Change{Path: path, From: from, To: to} }
	for _, test := range []struct {
		name    string
		savings map[string]units.Bytes
		edit    func(*spec.Job)
		want    [][]planner.Change
	}{
		{"checkpointing", map[string]units.Bytes{"full": 50 * gib}, nil, [][]planner.Change{
			{change("training.activation_checkpointing", "none", "full")},
		}},
		{"micro batch halved twice", map[string]units.Bytes{"half": 15 * gib}, nil, [][]planner.Change{
			{change("training.micro_batch_size", 8, 2), change("training.gradient_accumulation_steps", 2, 8)},
		}},
		{"8-bit optimizer", map[string]units.Bytes{"8bit": 50 * gib}, nil, [][]planner.Change{{
			change("training.optimizer.library", "torch", "bitsandbytes"),
			change("training.optimizer.state_bits", 32, 8),
			change("training.optimizer.implementation", "foreach", nil),
		}}},
		{"several, each alone", map[string]units.Bytes{"sdpa": 30 * gib, "mixed": 40 * gib}, nil, [][]planner.Change{
			{change("training.attention", "eager", "sdpa")},
			{change("training.precision", "fp32", "bf16-mixed")},
		}},
		{"fp16 where the card has no bf16", map[string]units.Bytes{"mixed": 90 * gib}, func(j *spec.Job) { j.Target.GPU = "T4" }, [][]planner.Change{
			{change("training.precision", "fp32", "fp16-mixed")},
		}},
		{"bf16 on AMD", map[string]units.Bytes{"mixed": 99 * gib}, func(j *spec.Job) {
			j.Target.GPU, j.Target.HeadroomGiB = "MI300X", 150*gib
		}, [][]planner.Change{
			{change("training.precision", "fp32", "bf16-mixed")},
		}},
		{"weights in bf16 too", map[string]units.Bytes{"bf16": 30 * gib}, func(j *spec.Job) { j.Training.Precision = spec.PrecisionBF16Mixed }, [][]planner.Change{{
			change("training.precision", "bf16-mixed", "bf16"), change("training.weights_dtype", "fp32", "bf16"),
		}}},
		{"no flash in fp32", map[string]units.Bytes{"flash": 50 * gib}, nil, [][]planner.Change{}},
		{"flash in 16 bits", map[string]units.Bytes{"flash": 50 * gib}, func(j *spec.Job) {
			j.Training.Precision, j.Training.Attention.Kernel = spec.PrecisionBF16Mixed, "sdpa"
		}, [][]planner.Change{{change("training.attention", "sdpa", "flash")}}},
		{"an odd micro batch is not halved", map[string]units.Bytes{"half": 50 * gib}, func(j *spec.Job) { j.Training.MicroBatchSize = 9 }, [][]planner.Change{}},
		{"none alone, two together", map[string]units.Bytes{"full": 20 * gib, "half": 2 * gib}, nil, [][]planner.Change{{
			change("training.micro_batch_size", 8, 1), change("training.gradient_accumulation_steps", 2, 16),
			change("training.activation_checkpointing", "none", "full"),
		}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, e := newPlanner(t, planner.Config{})
			e.required = cost(test.savings)
			job := resolved()
			if test.edit != nil {
				test.edit(&job)
			}
			c, err := p.Check(t.Context(), job)
			require.NoError(t, err)
			got := [][]planner.Change{}
			for _, f := range c.Fixes {
				got = append(got, f.Patch)
				require.Contains(t, f.Text, "instead of 100 GiB")
			}
			require.Equal(t, test.want, got)
		})
	}
}

func TestFixesSayWhatTheyDo(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	e.required = cost(map[string]units.Bytes{"full": 20 * gib, "half": 2 * gib})
	c, err := p.Check(t.Context(), resolved())
	require.NoError(t, err)
	require.Equal(t, "Take micro batches of 1 and accumulate 16 steps, turn on activation checkpointing: "+
		"needs 74.0 GiB instead of 100 GiB (the same global batch, somewhat slower; about a third more compute).", c.Fixes[0].Text)
}

func TestFixesThatTheEngineRefusesAreNotOffered(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{Engine: func(j spec.Job, d spec.Device, c spec.Coefficients) (*estimator.Estimate, error) {
		if j.Training.Checkpointing.Mode == "full" {
			return nil, fault.Fields{{Path: "training.activation_checkpointing", Want: "none"}}
		}
		return (&engine{required: cost(map[string]units.Bytes{"full": 90 * gib})}).run(j, d, c)
	}})
	c, err := p.Check(t.Context(), resolved())
	require.NoError(t, err)
	require.Empty(t, c.Fixes)
}

func TestFixesLeaveTheJobAlone(t *testing.T) {
	p, e := newPlanner(t, planner.Config{})
	e.required = cost(map[string]units.Bytes{"full": 90 * gib})
	job := resolved()
	c, err := p.Check(t.Context(), job)
	require.NoError(t, err)
	require.NotEmpty(t, c.Fixes)
	require.Equal(t, resolved(), job)
	require.Equal(t, "none", c.Estimate.Job.Training.Checkpointing.Mode)
}
