package planner_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// real returns a planner with the real engine.
func real(t testing.TB, c planner.Config) *planner.Planner {
	t.Helper()
	p, _ := newPlanner(t, planner.Config{Engine: estimator.Run, Store: c.Store, CacheEntries: c.CacheEntries})
	return p
}

func decode(t testing.TB, text string) spec.Job {
	t.Helper()
	job, err := wire.DecodeYAML([]byte(text))
	require.NoError(t, err)
	return job
}

const llama = `
version: 1
model: {id: meta-llama/Llama-3.1-8B}
training: {precision: bf16, micro_batch_size: 8, sequence_length: 2048, attention: sdpa, optimizer: {name: adamw, implementation: foreach}}
runtime: {trainer: hf}
target: {gpu: H100-SXM5-80GB}
`

func TestRealEstimate(t *testing.T) {
	p := real(t, planner.Config{})
	est, err := p.Estimate(t.Context(), decode(t, llama))
	require.NoError(t, err)
	require.Equal(t, int64(8_030_261_248), est.Parameters.Total)
	require.Equal(t, "meta-llama/Llama-3.1-8B", est.Job.Model.ID)
	require.Empty(t, est.Job.Model.Config)
	require.Equal(t, estimator.Version, est.Engine.Version)
	require.Equal(t, catalog.Version, est.Engine.Catalog)
	require.Equal(t, "H100-SXM5-80GB", est.Target.GPU)
	require.Equal(t, "prior", est.Peak.Interval.Source)
	require.Greater(t, est.Peak.Required, 64*units.GiB, "8 bytes a parameter and the activations")
	require.True(t, est.Assumptions[0].Decides)
}

func TestRealEstimateByCountIsWide(t *testing.T) {
	p := real(t, planner.Config{})
	job := decode(t, "{version: 1, model: {parameters: 8e9}, training: {optimizer: {name: adamw, implementation: foreach}}, target: {gpu: H100-SXM5-80GB}}")
	est, err := p.Estimate(t.Context(), job)
	require.NoError(t, err)
	require.Equal(t, "model.architecture", est.Assumptions[0].Path)
	required := float64(est.Peak.Required)
	require.InEpsilon(t, 0.75*required, float64(est.Peak.Interval.Low), 0.01)
	require.InEpsilon(t, 1.25*required, float64(est.Peak.Interval.High), 0.01)

	job.Model = spec.Model{ID: est.Assumptions[0].Value.(string)}
	exact, err := p.Estimate(t.Context(), job)
	require.NoError(t, err)
	require.Equal(t, exact.Peak.Required, est.Peak.Required, "the guess itself is an ordinary model")
	require.Greater(t, exact.Peak.Interval.Low, est.Peak.Interval.Low)
}

func TestRealSavedAnswerIsTheAnswer(t *testing.T) {
	p := real(t, planner.Config{Store: newStore(t)})
	saved, err := p.Save(t.Context(), decode(t, llama), "")
	require.NoError(t, err)
	kept, err := p.Saved(t.Context(), saved.ID)
	require.NoError(t, err)
	require.JSONEq(t, encode(t, saved), encode(t, kept))
}

// A fix is a promise: the job with its patch applied, read as any other job,
// fits and needs what the text says.
func TestRealFixesHold(t *testing.T) {
	for _, text := range []string{
		"{version: 1, model: {id: Qwen/Qwen2.5-1.5B}, training: {precision: bf16-mixed, micro_batch_size: 8, sequence_length: 2048, optimizer: {name: adamw, implementation: foreach}}, target: {gpu: A100-SXM4-80GB}}",
		"{version: 1, model: {id: Qwen/Qwen2.5-0.5B}, training: {precision: fp32, micro_batch_size: 2, sequence_length: 2048, optimizer: {name: adamw, implementation: foreach}, attention: eager}, target: {gpu: RTX-3090}}",
		"{version: 1, model: {id: Qwen/Qwen2.5-0.5B}, training: {precision: bf16-mixed, micro_batch_size: 4, sequence_length: 2048, optimizer: {name: adamw, implementation: foreach}, attention: eager}, target: {gpu: A10G}}",
	} {
		p := real(t, planner.Config{})
		c, err := p.Check(t.Context(), decode(t, text))
		require.NoError(t, err)
		require.NotEqual(t, estimator.Fits, c.Verdict, text)
		require.NotEmpty(t, c.Fixes, text)
		for _, fix := range c.Fixes {
			est, err := p.Estimate(t.Context(), patched(t, text, fix.Patch))
			require.NoError(t, err, fix.Text)
			require.Equal(t, estimator.Fits, est.Target.Verdict, fix.Text)
			require.Contains(t, fix.Text, "needs "+est.Peak.Required.String()+" instead of "+c.Estimate.Peak.Required.String())
		}
	}
}

// patched applies a patch to a job's JSON, as a client does.
func patched(t *testing.T, text string, patch []planner.Change) spec.Job {
	t.Helper()
	plain, err := wire.Encode(decode(t, text))
	require.NoError(t, err)
	var tree map[string]any
	require.NoError(t, json.Unmarshal(plain, &tree))
	for _, c := range patch {
		keys := strings.Split(c.Path, ".")
		at := tree
		for _, key := range keys[:len(keys)-1] {
			next, ok := at[key].(map[string]any)
			if !ok {
				next = map[string]any{}
				if short, ok := at[key].(string); ok {
					next["name"] = short // the short form of an optimizer
				}
				at[key] = next
			}
			at = next
		}
		if at[keys[len(keys)-1]] = c.To; c.To == nil {
			delete(at, keys[len(keys)-1])
		}
	}
	whole, err := json.Marshal(tree)
	require.NoError(t, err)
	job, err := wire.DecodeJSON(whole)
	require.NoError(t, err, "%s", whole)
	return job
}

func TestRealFits(t *testing.T) {
	p := real(t, planner.Config{})
	job := decode(t, "{version: 1, model: {id: Qwen/Qwen2.5-0.5B}, training: {precision: bf16-mixed, sequence_length: 1024, optimizer: {name: adamw, implementation: foreach}}}")
	fits, err := p.Fits(t.Context(), job, []string{"T4", "RTX-3090", "A100-SXM4-80GB", "MI300X"})
	require.NoError(t, err)
	for i, f := range fits {
		require.NoError(t, f.Err)
		require.Positive(t, f.MicroBatch, f.GPU)
		for more, want := range map[int]bool{0: true, 1: false} {
			job.Target.GPU, job.Training.MicroBatchSize = f.GPU, f.MicroBatch+more
			est, err := p.Estimate(t.Context(), job)
			require.NoError(t, err)
			require.Equal(t, want, est.Target.Verdict == estimator.Fits, "%s at %d", f.GPU, f.MicroBatch+more)
		}
		if i > 0 {
			require.Greater(t, f.MicroBatch, fits[i-1].MicroBatch, "more memory, larger batch")
		}
	}
}

// mix is n jobs, all different.
func mix(b *testing.B, n int) []spec.Job {
	ids := []string{"Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B", "mistralai/Mistral-7B-v0.1"}
	jobs := make([]spec.Job, n)
	for i := range jobs {
		jobs[i] = decode(b, fmt.Sprintf(
			"{version: 1, model: {id: %s}, training: {micro_batch_size: %d, sequence_length: %d, precision: %s, optimizer: {name: adamw, implementation: foreach}}, target: {gpu: H100-SXM5-80GB}}",
			ids[i%len(ids)], 1+i%8, 256*(1+i/8%8), []string{"bf16", "bf16-mixed"}[i/64%2]))
	}
	return jobs
}

func BenchmarkEstimate(b *testing.B) {
	for _, bench := range []struct {
		name    string
		entries int
	}{{"computed", -1}, {"cached", 1000}} {
		b.Run(bench.name, func(b *testing.B) {
			p, jobs := real(b, planner.Config{CacheEntries: bench.entries}), mix(b, 128)
			for _, o := range p.EstimateBatch(b.Context(), jobs, false) { // fills the cache
				require.NoError(b, o.Err)
			}
			for i := 0; b.Loop(); i++ {
				if _, err := p.Estimate(b.Context(), jobs[i%len(jobs)]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkFits(b *testing.B) {
	p, job := real(b, planner.Config{}), mix(b, 2)[1]
	for b.Loop() {
		if _, err := p.Fits(b.Context(), job, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	p := real(b, planner.Config{CacheEntries: -1})
	job := decode(b, llama)
	for b.Loop() {
		if _, err := p.Check(b.Context(), job); err != nil {
			b.Fatal(err)
		}
	}
}

// leaves lists the paths of all values of a job.
func leaves(at string, v any, into map[string]bool) {
	object, ok := v.(map[string]any)
	if !ok {
		into[at] = true
		return
	}
	for key, x := range object {
		leaves(strings.TrimPrefix(at+"."+key, "."), x, into)
	}
}

func jobLeaves(t *testing.T, job spec.Job) map[string]bool {
	text, err := json.Marshal(job)
	require.NoError(t, err)
	var tree any
	require.NoError(t, json.Unmarshal(text, &tree))
	paths := map[string]bool{}
	leaves("", tree, paths)
	return paths
}

func TestEveryDefaultFilledInIsListed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, job string }{
		{"bare", `{model: {id: gpt2}}`},
		{"a plain loop", `{model: {id: gpt2}, runtime: {trainer: plain}, training: {optimizer: {name: sgd, momentum: 0.9}}}`},
		{"lora with checkpoints", `{model: {id: Qwen/Qwen2.5-0.5B}, training: {method: lora, activation_checkpointing: full}}`},
		{"four ranks", `{model: {id: gpt2}, parallelism: {data: 4}}`},
		{"eight cards", `{model: {id: gpt2}, target: {gpu: T4, count: 8}}`},
		{"a count", `{model: {parameters: 200M}}`},
		{"older versions", `{model: {id: gpt2}, runtime: {framework_version: "2.6.0"}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			job := decode(t, test.job)
			est, err := real(t, planner.Config{}).Estimate(t.Context(), job)
			require.NoError(t, err)
			asked := jobLeaves(t, job)
			listed := func(path string) bool {
				return asked[path] || asked[strings.TrimSuffix(path, ".mode")] || slices.ContainsFunc(est.Assumptions, func(a estimator.Assumption) bool {
					return a.Path == path || strings.HasPrefix(a.Path, path+".") || strings.HasPrefix(path, a.Path+".")
				})
			}
			for path := range jobLeaves(t, est.Job) {
				require.True(t, listed(path), "%s is filled in and not listed", path)
			}
		})
	}
}

func TestBreakdownHasNoNegativeShare(t *testing.T) {
	t.Parallel()
	p := real(t, planner.Config{CacheEntries: -1})
	rapid.Check(t, func(r *rapid.T) {
		job := decode(t, fmt.Sprintf(`{model: {id: gpt2}, training: {micro_batch_size: %d, sequence_length: %d, gradient_accumulation_steps: %d, method: %s, precision: %s, optimizer: %s, activation_checkpointing: %s}, runtime: {trainer: %s}, target: {memory_gib: %d}}`,
			rapid.IntRange(1, 9).Draw(r, "micro"), rapid.IntRange(1, 300).Draw(r, "length"), rapid.IntRange(1, 3).Draw(r, "steps"),
			rapid.SampledFrom([]string{"full", "lora"}).Draw(r, "method"), rapid.SampledFrom([]string{"fp32", "bf16", "bf16-mixed"}).Draw(r, "precision"),
			rapid.SampledFrom([]string{"adamw", "sgd", "adafactor"}).Draw(r, "optimizer"), rapid.SampledFrom([]string{"none", "full"}).Draw(r, "checkpointing"),
			rapid.SampledFrom([]string{"hf", "plain"}).Draw(r, "trainer"), rapid.IntRange(2, 24).Draw(r, "memory")))
		est, err := p.Estimate(t.Context(), job)
		require.NoError(r, err)
		sum := units.Bytes(0)
		for _, share := range est.Breakdown {
			require.Positive(r, share.Bytes, share.Category)
			sum += share.Bytes
		}
		require.Equal(r, est.Peak.Process, sum)
		for _, m := range est.Timeline {
			for _, share := range m.ByCategory {
				require.Positive(r, share.Bytes, share.Category)
			}
		}
	})
}
