package step

import (
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
)

// What a job may ask to be done between its steps, each a phase with a peak of
// its own: evaluation, generation, writing a checkpoint. They follow the steady
// steps, whose optimizer state is there.

func (r *Run) afterSteps() {
	t := &r.Job.Training
	if t.Evaluation != nil {
		r.aside(Evaluation, r.evaluate)
	}
	if t.Generation != nil && t.Generation.EngineMemoryFraction == 0 {
		r.aside(Generation, r.generate)
	}
	if t.CheckpointSave != "" && t.CheckpointSave != "none" {
		// Of a model that is whole on its card torch.save and safetensors copy one
		// tensor after the other to the host: nothing is made on the card.
		r.aside(CheckpointSave, func(*graph.Frame) {})
	}
}

// aside runs a phase in a frame of its own, in eval mode and without gradients.
func (r *Run) aside(ph Phase, body func(f *graph.Frame)) {
	r.phase = ph
	r.M.RunEveryLayer()
	r.M.Evaluating = true
	r.noGrad(body)
	r.M.Evaluating = false
	r.Mark(ph, Whole)
	r.program = append(r.program, allocator.Part{Label: int32(ph), Events: r.M.Events()})
}

// evaluate is an evaluation loop: the model's forward with its loss, batch by
// batch. Where logits are kept for a metric they and the labels are joined on
// the card with those of the batches before, which takes the sum of both for a
// moment (transformers/trainer.py:evaluation_loop, EvalLoopContainer). Of many
// batches the first two and the last two are run.
func (r *Run) evaluate(f *graph.Frame) {
	e := r.Job.Training.Evaluation
	n, kept := max(1, e.BatchesHeld), e.LogitsKept != nil && *e.LogitsKept
	if !kept {
		n = min(n, 2) // the loop's names hold one batch's outputs at most
	}
	size := e.MicroBatchSize
	if size == 0 {
		size = r.Job.Training.MicroBatchSize
	}
	var logits, labels *graph.Tensor
	for i := 0; i < n; i++ {
		if skipped := n - 4; i == 2 && skipped > 0 {
			i += skipped
			logits, labels = longer(f, "all_preds", logits, int64(i)), longer(f, "all_labels", labels, int64(i))
		}
		batch := r.batchOf(f, r.inputsOf(size))
		out := r.evalForward(f, batch)
		if kept {
			logits = joined(f, "all_preds", logits, out.Logits)
			labels = joined(f, "all_labels", labels, batch.Tensor(model.Labels))
		}
		out.Release(f)
	}
}

// batchOf copies a batch to the card under names of f.
func (r *Run) batchOf(f *graph.Frame, inputs []model.Input) model.Batch {
	b := model.Batch{Inputs: inputs, Padded: r.padded()}
	for _, in := range inputs {
		b.Tensors = append(b.Tensors, f.Input(in.DType, in.Shape.Slice()...))
	}
	for i, in := range inputs {
		f.Let(in.Name, b.Tensors[i])
	}
	return b
}

// evalForward is the prepared model's forward.
func (r *Run) evalForward(f *graph.Frame, b model.Batch) model.Outputs {
	old := r.Batch
	r.Batch = b
	defer func() { r.Batch = old }()
	if h, ok := r.trainer.(*hfLoop); ok {
		return h.forward(r, f)
	}
	var out model.Outputs
	run := func() { out = r.Net.Forward(f, b) }
	if d := r.Job.Training.Precision.Mixed(); d != "" {
		f.Autocast(DTypeOf(d), run)
	} else {
		run()
	}
	return out
}

// joined appends one batch's tensor to what was kept.
func joined(f *graph.Frame, name string, all, t *graph.Tensor) *graph.Tensor {
	switch {
	case t == nil:
		return all
	case all == nil:
		return f.Let(name, t)
	}
	return f.Let(name, f.Cat(0, all, t))
}

// longer stands for what so many batches left: of the batch shape of t, which
// holds two.
func longer(f *graph.Frame, name string, t *graph.Tensor, batches int64) *graph.Tensor {
	if t == nil {
		return nil
	}
	shape := t.Shape.Slice()
	shape[0] = shape[0] / 2 * batches
	return f.Let(name, f.Empty(t.DType, shape...))
}

// generate is model.generate with a key-value cache: the prompt in one pass,
// whose head sees its last token only, then token by token. Every step makes
// the keys and values of each layer anew, one token longer
// (transformers/cache_utils.py:DynamicLayer.update); of the steps the last two
// are run. Sampling sorts the scores of the last token.
func (r *Run) generate(f *graph.Frame) {
	t := &r.Job.Training
	g := t.Generation
	prompt, length := int64(max(1, g.PromptLength)), int64(max(1, g.PromptLength)+max(1, g.CompletionLength))
	size := t.MicroBatchSize
	if t.Objective == "grpo" {
		size *= max(1, t.GradAccumSteps) // one generation serves the step's micro batches
	}
	kv := cacheOf(r)
	r.doubt(Doubt{
		Code: "generation", Path: "training.generation", Error: generationError,
		Text: "Generation is modelled as the prompt's pass and the growth of the key-value cache; what a token's own pass takes is not counted.",
	})
	cache := kv.make(r, int64(size), prompt)
	r.lastTokenOnly(func() {
		inputs := model.TokenInputs(model.Sizes{Batch: int64(size), Tokens: prompt, Masked: true})
		out := r.evalForward(f, r.batchOf(f, inputs))
		out.Release(f)
	})
	for _, n := range []int64{length - 1, length} {
		kv.grow(r, cache, int64(size), n)
		scores := f.Let("next_token_logits", f.Empty(graph.F32, int64(size), kv.vocabulary))
		f.Let("sorted_logits", f.Empty(graph.F32, int64(size), kv.vocabulary))
		f.Let("sorted_indices", f.Empty(graph.I64, int64(size), kv.vocabulary))
		f.Let("probs", f.Softmax(scores, graph.F32))
	}
	forgetList(r.M, cache)
}

// generationError is the least relative error of an estimate that generates.
const generationError = 0.03

// lastTokenOnly lets the head see the last token of each sample while body runs.
func (r *Run) lastTokenOnly(body func()) {
	head := r.Net.Head
	if head == nil {
		body()
		return
	}
	whole := head.Forward
	head.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		if x.Shape.N != 3 {
			return whole(f, in...)
		}
		n := x.Shape.D[1]
		return whole(f, f.Slice(x, 1, n-1, n))
	}
	body()
	head.Forward = whole
}

// kvCache is the shape of a decoder's keys and values.
type kvCache struct {
	layers, heads, width, vocabulary int64
	dtype                            graph.DType
}

var cacheRule = &graph.Rule{Name: "DynamicCache", Source: "transformers/cache_utils.py:DynamicLayer.update"}

// cacheOf reads the cache's shape off the config.
func cacheOf(r *Run) kvCache {
	c := r.Job.Model.Config
	number := func(keys ...string) int64 {
		for _, k := range keys {
			if n, ok := c[k].(float64); ok && n > 0 {
				return int64(n)
			}
		}
		return 0
	}
	heads := max(1, number("num_attention_heads", "n_head", "num_heads"))
	kv := kvCache{layers: int64(len(r.Net.Blocks)), heads: number("num_key_value_heads"), width: number("head_dim"), vocabulary: max(1, number("vocab_size"))}
	if kv.heads == 0 {
		kv.heads = heads
	}
	if kv.width == 0 {
		kv.width = number("hidden_size", "n_embd", "d_model") / heads
	}
	kv.dtype = DTypeOf(r.Job.Training.WeightsDType)
	if d := r.Job.Training.Precision.Mixed(); d != "" {
		kv.dtype = DTypeOf(d)
	}
	return kv
}

func (kv kvCache) tensor(r *Run, batch, tokens int64) *graph.Tensor {
	return r.M.Make(cacheRule, graph.Activations, kv.dtype, graph.D(batch, kv.heads, tokens, kv.width))
}

func (kv kvCache) make(r *Run, batch, tokens int64) []*graph.Tensor {
	cache := make([]*graph.Tensor, 2*kv.layers)
	for i := range cache {
		cache[i] = kv.tensor(r, batch, tokens)
	}
	return cache
}

// grow makes every tensor of the cache anew for so many tokens.
func (kv kvCache) grow(r *Run, cache []*graph.Tensor, batch, tokens int64) {
	for i, old := range cache {
		cache[i] = kv.tensor(r, batch, tokens)
		r.M.Forget(old)
	}
}
