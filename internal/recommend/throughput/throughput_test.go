package throughput

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// small is a Llama of a few hundred million parameters.
func small() spec.Job {
	j := spec.Job{Model: spec.Model{Config: map[string]any{
		"model_type": "llama", "hidden_size": 2048.0, "intermediate_size": 8192.0, "num_hidden_layers": 16.0,
		"num_attention_heads": 32.0, "num_key_value_heads": 8.0, "vocab_size": 128256.0, "tie_word_embeddings": true,
	}}}
	j.Training.Precision, j.Training.MicroBatchSize, j.Training.SequenceLength = spec.PrecisionBF16, 4, 2048
	return j
}

// stepOf prices a job on a card of the catalogue.
func stepOf(t *testing.T, j spec.Job, card string) Step {
	t.Helper()
	c, err := catalog.Open()
	require.NoError(t, err)
	g, err := c.GPU(card)
	require.NoError(t, err)
	d := spec.Device{Key: g.Key, Vendor: g.Vendor, ComputeCapability: spec.ParseVersion(g.ComputeCapability), Total: g.Usable}
	now, _, err := estimator.Resolve(j)
	require.NoError(t, err)
	p, err := NewProfile(Base(j), func(base spec.Job) (*estimator.Work, error) { return new(estimator.Workspace).Work(base, d) })
	require.NoError(t, err)
	return Predict(now, p, RatesOf(g, d))
}

// What is known of steps holds of the predicted ones: each changed job is faster
// or slower per sample than the one it was made from.
func TestWhatIsKnownOfSpeedHolds(t *testing.T) {
	base := stepOf(t, small(), "A100-SXM4-80GB")
	require.InDelta(t, 0.5, base.MFU(), 0.25)
	require.InEpsilon(t, 4*2048/base.Seconds(), base.Rate()*base.Length, 1e-9)
	for _, tt := range []struct {
		name   string
		card   string
		edit   func(j *spec.Job)
		faster bool
	}{
		{"recomputation costs", "A100-SXM4-80GB", func(j *spec.Job) { j.Training.Checkpointing.Mode = "full" }, false},
		{"eager attention costs", "A100-SXM4-80GB", func(j *spec.Job) { j.Training.Attention.Kernel = "eager" }, false},
		{"fp32 costs", "A100-SXM4-80GB", func(j *spec.Job) { j.Training.Precision = spec.PrecisionFP32 }, false},
		{"compilation pays", "A100-SXM4-80GB", func(j *spec.Job) { j.Training.Compile = true }, true},
		{"a larger micro batch pays", "A100-SXM4-80GB", func(j *spec.Job) { j.Training.MicroBatchSize = 16 }, true},
		{"a smaller one costs", "A100-SXM4-80GB", func(j *spec.Job) { j.Training.MicroBatchSize = 1 }, false},
		{"an H100 is faster", "H100-SXM5-80GB", func(*spec.Job) {}, true},
		{"a T4 is slower", "T4", func(*spec.Job) {}, false},
		{"offload costs", "A100-SXM4-80GB", func(j *spec.Job) { j.Parallelism.Offload = []string{"parameters", "optimizer"} }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			j := small()
			tt.edit(&j)
			s := stepOf(t, j, tt.card)
			require.Equal(t, tt.faster, s.Rate() > base.Rate(), "%.3f against %.3f samples a second", s.Rate(), base.Rate())
			r := s.RelativeTo(&base)
			require.Less(t, r.Low, r.High)
		})
	}
}

// Cards that are far apart exchange more slowly, and sharding exchanges more.
func TestExchangeGrowsWithRanksAndSharding(t *testing.T) {
	on := func(data int, sharding, card string) Step {
		j := small()
		j.Parallelism.Data, j.Parallelism.Sharding, j.Target.Count = data, sharding, data
		if sharding == "fsdp" {
			j.Parallelism.FSDP = &spec.FSDP{Version: 2}
		}
		return stepOf(t, j, card)
	}
	ddp, fsdp := on(8, "ddp", "A100-SXM4-80GB"), on(8, "fsdp", "A100-SXM4-80GB")
	require.Greater(t, fsdp.Exchange, ddp.Exchange)
	far, pcie := on(64, "fsdp", "A100-SXM4-80GB"), on(8, "fsdp", "RTX-4090")
	require.Greater(t, far.Exchange, fsdp.Exchange)
	require.Greater(t, pcie.Exchange, fsdp.Exchange)
	one := on(1, "none", "A100-SXM4-80GB")
	require.Zero(t, one.Exchange)
	require.Greater(t, ddp.Rate(), 6*one.Rate())
}

// A step is the straight line through what was profiled.
func TestProfileIsTheWorkItself(t *testing.T) {
	j := Base(small())
	d := spec.Device{ComputeCapability: spec.Version{8, 0}}
	work := func(base spec.Job) (*estimator.Work, error) { return new(estimator.Workspace).Work(base, d) }
	p, err := NewProfile(j, work)
	require.NoError(t, err)
	for _, micro := range []int{1, 3, 8, 32} {
		j.Training.MicroBatchSize = micro
		w, err := work(j)
		require.NoError(t, err)
		var flops, bytes, wantFLOPs, wantBytes float64
		for _, k := range w.Kernels {
			wantFLOPs += k.FLOPs * float64(k.Count)
			wantBytes += k.Bytes * float64(k.Count)
		}
		p.each(micro, func(k *kernel) {
			flops += k.FLOPs * float64(k.Count)
			bytes += k.Bytes * float64(k.Count)
		})
		require.InEpsilon(t, wantFLOPs, flops, 1e-6, "micro batch %d", micro)
		require.InEpsilon(t, wantBytes, bytes, 0.02, "micro batch %d", micro)
	}
}
