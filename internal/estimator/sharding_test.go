package estimator_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// stages are the ways of spreading the model's state, each keeping no more of
// it than the one before.
var stages = []string{"zero1", "zero2", "zero3"}

// shardedJob is a small model under DeepSpeed's engine on some ranks.
func shardedJob(stage string, ranks int) spec.Job {
	job := spec.Job{Model: spec.Model{Config: map[string]any{
		"model_type": "llama", "hidden_size": 256.0, "intermediate_size": 704.0, "num_hidden_layers": 4.0, "num_attention_heads": 4.0,
		"num_key_value_heads": 2.0, "vocab_size": 1024.0, "tie_word_embeddings": false, "max_position_embeddings": 512.0,
	}}}
	job.Training.MicroBatchSize, job.Training.SequenceLength = 1, 128
	job.Parallelism = spec.Parallelism{Data: ranks, Sharding: stage, Zero: &spec.Zero{
		ReduceBucketSize:          spec.AutoNumber{Set: true, Value: 1e5},
		ParamPersistenceThreshold: spec.AutoNumber{Set: true, Value: 1},
		MaxLiveParameters:         spec.AutoNumber{Set: true, Value: 1e5},
		MaxReuseDistance:          spec.AutoNumber{Set: true, Value: 1e5},
		PrefetchBucketSize:        spec.AutoNumber{Set: true, Value: 1e5},
	}}
	job.Runtime.Trainer = "deepspeed"
	return job
}

// terms are an answer's bytes per parameter.
func terms(e *estimator.Estimate) map[string]float64 {
	by := map[string]float64{}
	for _, p := range e.PerParameter {
		by[p.Term] = p.Bytes
	}
	return by
}

// The laws of ZeRO (arXiv 1910.02054, figure 1), with DeepSpeed's fp32 copy and
// Adam: of 2 + 2 + 12 bytes a parameter stage 1 divides the 12 by the ranks,
// stage 2 the gradients, stage 3 the weights too.
func TestLawsOfZeRO(t *testing.T) {
	for _, c := range []struct {
		name, stage      string
		ranks            int
		weights, leastOf float64 // bytes; of gradients at least
	}{
		{"stage 1 on 4", "zero1", 4, 2, 2},
		{"stage 1 on 64", "zero1", 64, 2, 2},
		{"stage 2 on 4", "zero2", 4, 2, 2. / 4},
		{"stage 2 on 64", "zero2", 64, 2, 2. / 64},
		{"stage 3 on 4", "zero3", 4, 2. / 4, 2. / 4},
		{"stage 3 on 64", "zero3", 64, 2. / 64, 2. / 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := estimator.Run(shardedJob(c.stage, c.ranks), a100, prior)
			require.NoError(t, err)
			got := terms(e)
			const padding = 0.001
			require.InDelta(t, c.weights, got["weights"], padding)
			require.InDelta(t, 4/float64(c.ranks), got["master_weights"], padding)
			require.InDelta(t, 8/float64(c.ranks), got["optimizer"], padding)
			require.GreaterOrEqual(t, got["gradients"]+padding, c.leastOf)
		})
	}
}

// No stage keeps more of the model's state than the one before, on however many
// ranks, and the parts of the peak always sum to it.
func TestStagesKeepLessAndLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(2, 16).Draw(t, "ranks")
		accumulation := rapid.SampledFrom([]int{1, 2, 3}).Draw(t, "accumulation")
		checkpointing := rapid.SampledFrom([]string{"none", "full"}).Draw(t, "checkpointing")
		precision := rapid.SampledFrom([]spec.Precision{spec.PrecisionBF16Mixed, spec.PrecisionFP16Mixed, spec.PrecisionFP32}).Draw(t, "precision")
		last := units.Bytes(1 << 62)
		for _, stage := range stages {
			job := shardedJob(stage, ranks)
			job.Training.GradAccumSteps, job.Training.Precision = accumulation, precision
			job.Training.Checkpointing.Mode = checkpointing
			e, err := estimator.Run(job, a100, prior)
			require.NoError(t, err)
			kept := resident(e)
			require.LessOrEqual(t, kept, last, stage)
			last = kept
			sum := units.Bytes(0)
			for _, s := range e.Breakdown {
				sum += s.Bytes
			}
			require.Equal(t, e.Peak.Process, sum, stage)
		}
	})
}

// resident is the weights, gradients and optimizer state of an answer.
func resident(e *estimator.Estimate) units.Bytes {
	n := 0.0
	for term, b := range terms(e) {
		if term != "gradients" {
			n += b * float64(e.Parameters.Total)
		}
	}
	return units.Bytes(n)
}

// What is offloaded is on the host, and not on the card.
func TestOffloadMovesStateToTheHost(t *testing.T) {
	for _, c := range []struct {
		name, stage string
		what        []string
		host        float64 // bytes a parameter and rank
		gone        []string
	}{
		{"optimizer of stage 2", "zero2", []string{"optimizer"}, 16, []string{"master_weights", "optimizer"}},
		{"optimizer of stage 3", "zero3", []string{"optimizer"}, 18, []string{"master_weights", "optimizer"}},
		{"all of stage 3", "zero3", []string{"optimizer", "parameters"}, 20, []string{"master_weights", "optimizer", "weights"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := shardedJob(c.stage, 4)
			job.Parallelism.Offload = c.what
			e, err := estimator.Run(job, a100, prior)
			require.NoError(t, err)
			largest := 2 * 1024 * 256 // a buffer of stage 2
			require.InDelta(t, c.host*float64(e.Parameters.Total)/4, float64(e.HostMemory), float64(largest)+1e4)
			for _, term := range c.gone {
				require.Less(t, terms(e)[term], 0.01, term)
			}
		})
	}
}

// Settings of ZeRO that are not modelled are refused by their path.
func TestZeRORefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(j *spec.Job)
		path   string
	}{
		{"no stage", func(j *spec.Job) { j.Parallelism.Sharding = "ddp"; j.Parallelism.Zero = nil }, "parallelism.sharding"},
		{"no fp32 copy", func(j *spec.Job) { j.Training.MasterWeights = "none" }, "training.master_weights"},
		{"fp32 weights", func(j *spec.Job) { j.Training.WeightsDType = spec.FP32 }, "training.weights_dtype"},
		{"parameters of stage 2 elsewhere", func(j *spec.Job) { j.Parallelism.Offload = []string{"optimizer", "parameters"} }, "parallelism.offload[1]"},
		{"activations elsewhere", func(j *spec.Job) { j.Parallelism.Offload = []string{"activations"} }, "parallelism.offload[0]"},
		{"a plain loop", func(j *spec.Job) { j.Runtime.Trainer = "plain" }, "runtime.trainer"},
		{"auto without the Trainer", func(j *spec.Job) { j.Parallelism.Zero.ReduceBucketSize = spec.AutoNumber{Set: true, Auto: true} }, "parallelism.zero.reduce_bucket_size"},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := shardedJob("zero2", 4)
			c.change(&job)
			_, err := estimator.Run(job, a100, prior)
			require.ErrorContains(t, err, c.path)
		})
	}
}

// The Trainer takes its bucket sizes from the hidden size where they are auto.
func TestTrainerFillsInAuto(t *testing.T) {
	job := shardedJob("zero3", 4)
	auto := spec.AutoNumber{Set: true, Auto: true}
	job.Runtime.Trainer = "hf"
	job.Parallelism.Zero = &spec.Zero{ReduceBucketSize: auto, PrefetchBucketSize: auto, ParamPersistenceThreshold: auto}
	e, err := estimator.Run(job, a100, prior)
	require.NoError(t, err)
	z := e.Job.Parallelism.Zero
	require.Equal(t, []float64{256 * 256, 58982, 2560}, []float64{z.ReduceBucketSize.Value, z.PrefetchBucketSize.Value, z.ParamPersistenceThreshold.Value})
}

// Of the flat groups some rank may hold more whole gradients than the first,
// which the answer is of: it says so.
func TestFullerRanksAreDoubted(t *testing.T) {
	for _, c := range []struct {
		name   string
		vocab  float64
		doubts bool
	}{
		{"the embedding is the first ranks'", 65536, false},
		{"layers outweigh the embedding", 64, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := shardedJob("zero2", 8)
			job.Model.Config["vocab_size"], job.Model.Config["tie_word_embeddings"] = c.vocab, true
			e, err := estimator.Run(job, a100, prior)
			require.NoError(t, err)
			found := false
			for _, w := range e.Warnings {
				found = found || w.Code == "ranks_differ"
			}
			require.Equal(t, c.doubts, found)
		})
	}
}
