package step_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/fault"
)

// shardedJob is a measured job over several ranks, changed.
func shardedJob(t *testing.T, trace string, change func(j *spec.Job)) spec.Job {
	data, err := os.ReadFile("testdata/traces/" + trace + ".job.json")
	require.NoError(t, err)
	var job spec.Job
	require.NoError(t, json.Unmarshal(data, &job))
	change(&job)
	job, _, err = estimator.Resolve(job)
	require.NoError(t, err)
	return job
}

// What neither generation of FSDP has, or is not modelled with it, is refused
// by its path.
func TestFSDPRefusals(t *testing.T) {
	for _, c := range []struct {
		name, trace string
		change      func(j *spec.Job)
		paths       []string
	}{
		{"third generation", "fsdp2-checkpoint", func(j *spec.Job) { j.Parallelism.FSDP.Version = 3 }, []string{"parallelism.fsdp.version"}},
		{"one shard", "fsdp2-checkpoint", func(j *spec.Job) { j.Parallelism.Replicate = 8 }, []string{"parallelism.data"}},
		{"replicas that do not divide", "fsdp2-checkpoint", func(j *spec.Job) { j.Parallelism.Replicate = 3 }, []string{"parallelism.data"}},
		{"prefetch of FSDP 1", "fsdp2-checkpoint", func(j *spec.Job) { j.Parallelism.FSDP.BackwardPrefetch = "post" }, []string{"parallelism.fsdp.backward_prefetch"}},
		{"separate modules in FSDP 1", "fsdp1-uneven", func(j *spec.Job) { j.Parallelism.FSDP.ShardedSeparately = []string{"lm_head"} }, []string{"parallelism.fsdp.sharded_separately"}},
		{"no shards in FSDP 1", "fsdp1-uneven", func(j *spec.Job) { j.Parallelism.FSDP.Strategy = "NO_SHARD" }, []string{"parallelism.fsdp.strategy"}},
		{"scaler", "fsdp2-checkpoint", func(j *spec.Job) { j.Training.Precision = spec.PrecisionFP16Mixed }, []string{"training.precision"}},
		{"types of one unit", "fsdp2-lora", func(j *spec.Job) { j.Training.Adapter.DType = spec.FP32 }, []string{"training.adapter.dtype"}},
		{"Trainer reducing in fp32", "fsdp1-uneven", func(j *spec.Job) { j.Runtime.Trainer = "hf" }, []string{"parallelism.fsdp.reduce_dtype"}},
		{"all at once", "fsdp2-checkpoint", func(j *spec.Job) {
			j.Runtime.Trainer = "hf"
			j.Parallelism.Offload = []string{"parameters"}
		}, []string{"parallelism.offload", "runtime.trainer", "parallelism.fsdp.reduce_dtype", "parallelism.fsdp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := step.Compile(shardedJob(t, c.trace, c.change), cards["A100-SXM4-80GB"])
			var paths []string
			for _, f := range fault.FieldsOf(err) {
				paths = append(paths, f.Path)
			}
			require.ElementsMatch(t, c.paths, paths)
		})
	}
}

// Where parameters do not divide by the ranks the run is that of the fullest; flat
// parameters are padded everywhere.
func TestUnevenShards(t *testing.T) {
	for _, c := range []struct {
		name, trace string
		uneven      bool
		perRank     int64
	}{
		{"divides", "fsdp2-checkpoint", false, 285408},
		{"does not", "fsdp2-uneven", true, 436970},
		{"flat", "fsdp1-uneven", false, 434536},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, err := step.Compile(shardedJob(t, c.trace, func(*spec.Job) {}), cards["A100-SXM4-80GB"])
			require.NoError(t, err)
			require.Equal(t, c.uneven, plan.Uneven)
			require.Equal(t, c.perRank, plan.PerRank)
		})
	}
}

// The root stays gathered after forward unless the job says otherwise, which
// torch heeds since its newer fully_shard.
func TestRootStaysGathered(t *testing.T) {
	events := func(version string, reshard *bool) int {
		job := shardedJob(t, "fsdp2-checkpoint", func(j *spec.Job) {
			j.Runtime.FrameworkVersion, j.Runtime.LibraryVersions = version, nil
			j.Parallelism.FSDP.ReshardAfterForward = reshard
		})
		plan, err := step.Compile(job, cards["A100-SXM4-80GB"])
		require.NoError(t, err)
		n := 0
		for _, p := range plan.Program[1].Parts {
			n += len(p.Events)
		}
		return n
	}
	on := true
	require.Equal(t, events("2.6.0", &on), events("2.6.0", nil))
	require.Greater(t, events("2.15.0", &on), events("2.15.0", nil))
}
