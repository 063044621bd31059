package step

import (
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// buildOf is what a resolved job tells the model's builder.
func buildOf(job spec.Job, v spec.Versions, stage int) model.Build {
	t := &job.Training
	return model.Build{
		Versions:     v,
		DType:        DTypeOf(t.WeightsDType),
		Attention:    model.Attention{Kernel: t.Attention.Kernel, Backend: t.Attention.Backend},
		UseCache:     usesCache(&job, v),
		AsksCache:    asksCache(&job, v),
		Checkpointed: t.Checkpointing.Mode == "full",
		Objective:    t.Objective,
		Classes:      classesOf(t),
		Auxiliary:    t.AuxLogits,
		Patches:      patchesOf(&job),
		Image:        imageOf(t),
		Frames:       int64(t.NumFrames),
		Tokens:       int64(t.SequenceLength),
		LossChunk:    int64(t.Loss.ChunkTokens),
		Ranks:        ranksOf(&job, stage),

		LinearAttention: t.LinearAttention,
	}
}

// imageOf is the height and width of the job's images, zeros for none.
func imageOf(t *spec.Training) [2]int64 {
	n := len(t.ImageSize)
	if n < 2 {
		return [2]int64{}
	}
	return [2]int64{int64(t.ImageSize[n-2]), int64(t.ImageSize[n-1])}
}

// classesOf is the number of classes the job names, 0 for none.
func classesOf(t *spec.Training) int64 {
	if t.NumClasses == nil {
		return 0
	}
	return int64(*t.NumClasses)
}

// trainerDropsCacheSince is the first transformers whose Trainer sets use_cache
// to false.
var trainerDropsCacheSince = spec.Version{5}

// usesCache reports whether the model fills a key-value cache while it trains:
// the config's default is yes, checkpointing turns it off, and so do newer
// Trainers. Loops over several ranks are taken to turn it off.
func usesCache(j *spec.Job, v spec.Versions) bool {
	return j.Training.Checkpointing.Mode != "full" && asksCache(j, v)
}

// asksCache is usesCache for a model that does not turn it off under
// checkpointing.
func asksCache(j *spec.Job, v spec.Versions) bool {
	if j.Parallelism.Ranks() > 1 {
		return false
	}
	return j.Runtime.Trainer == "plain" || v.Transformers.Before(trainerDropsCacheSince)
}

// requireInputGrads is enable_input_require_grads: a hook makes the embedding's
// output a leaf that needs a gradient, without which a checkpointed block of
// frozen weights would have none to pass on. Trainers call it for adapters
// under checkpointing.
func requireInputGrads(r *Run) {
	if t := &r.Job.Training; !t.InputGrad && !trainerRequiresInputGrads(r) {
		return
	}
	for _, embeddings := range append([]*graph.Module{r.Net.Embeddings}, r.Net.MoreEmbeddings...) {
		if embeddings == nil { // diffusers has no such function
			continue
		}
		forward := embeddings.Forward
		embeddings.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			out := forward(f, in...)
			f.RequireGrad(out[0])
			return out
		}
	}
}

// embeddingGradsSince is the transformers that does so whenever it turns
// checkpointing on (not in 4.49; transformers/modeling_utils.py:
// _activation_checkpointing_enable).
var embeddingGradsSince = spec.Version{5}

// trainerRequiresInputGrads reports whether that happens: by checkpointing
// itself, by the loop, or by the preparation of a quantised model, which does it
// where checkpoints are reentrant and to which a Trainer leaves it.
func trainerRequiresInputGrads(r *Run) bool {
	t := &r.Job.Training
	switch {
	case t.Adapter == nil || t.Checkpointing.Mode != "full":
		return false
	case r.M.Versions.Transformers.AtLeast(embeddingGradsSince):
		return true
	case r.quantized && (prepares(t) || r.Job.Runtime.Trainer != "plain"):
		return t.Checkpointing.Reentrant != nil && *t.Checkpointing.Reentrant
	}
	return true
}

// checkpoint marks the blocks whose activations are recomputed.
func checkpoint(r *Run) {
	c := &r.Job.Training.Checkpointing
	if c.Mode != "full" && c.Mode != "selective" || r.Net.Uncheckpointed {
		return
	}
	kind := graph.NonReentrant
	if c.Reentrant != nil && *c.Reentrant {
		kind = graph.Reentrant
	}
	every := max(1, c.Every)
	for i, b := range r.Net.Blocks {
		if i%every == 0 {
			b.Recompute = kind
		}
	}
}

// layOut gives the filters of convolutions the job's memory format.
func layOut(r *Run) {
	if r.Job.Training.MemoryFormat != channelsLast {
		return
	}
	for _, p := range r.Net.Root.Parameters() {
		p.ChannelsLast = true
	}
}

// channelsLast is the memory format in which a pixel's channels lie together.
const channelsLast = "channels_last"

// patchesOf are the functions that kernel libraries and trainers replace.
func patchesOf(j *spec.Job) model.Patches {
	p := ligerPatches(&j.Training)
	if j.Runtime.Trainer == "trl" {
		p.Scored = scoresOf(j.Training.Objective)
	}
	return p
}

// withoutDropout is a config whose probabilities of dropping something are 0, as
// training scripts and trainers set them.
func withoutDropout(config map[string]any) map[string]any {
	bare := make(map[string]any, len(config))
	for k, v := range config {
		if _, number := v.(float64); number && (strings.Contains(k, "dropout") || strings.HasSuffix(k, "_pdrop")) {
			v = 0.0
		}
		bare[k] = v
	}
	return bare
}
