package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// What transformers gives every causal language model: the cache, the head,
// the loss.

// keyValueCache is a DynamicCache during training: it keeps the keys and
// values of every layer until the outputs die (transformers/cache_utils.py).
type keyValueCache struct {
	copies  bool
	tensors []*graph.Tensor
}

// copyingCacheSince is when updating an empty cache began to concatenate to
// it, which copies.
var copyingCacheSince = spec.Version{4, 54}

// update hands keys and values to the cache, if there is one, and binds what it
// returns to the caller's names for them.
func (c *keyValueCache) update(f *graph.Frame, keyName, valueName string, key, value *graph.Tensor) (k, v *graph.Tensor) {
	if c == nil {
		return key, value
	}
	kept := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		k, v := in[0], in[1]
		if c.copies {
			k, v = f.Let("keys", f.Cat(-2, k)), f.Let("values", f.Cat(-2, v))
		}
		c.tensors = append(c.tensors, f.Keep(k), f.Keep(v))
		return []*graph.Tensor{k, v}
	}, key, value)
	return f.Let(keyName, kept[0]), f.Let(valueName, kept[1])
}

// decoderContext is what every layer of one forward pass shares, which Python
// passes as arguments.
type decoderContext struct {
	batch           Batch
	mask, positions *graph.Tensor
	cache           *keyValueCache
	// cachePosition numbers the tokens for the cache, where position_ids is not
	// a view of it.
	cachePosition *graph.Tensor
	// slides says that the cache keeps a window of tokens for these layers.
	slides bool
}

// beside is what a layer is called with beside the hidden states.
func (c *decoderContext) beside(v spec.Versions) func() (args, bound []*graph.Tensor) {
	return func() (args, bound []*graph.Tensor) {
		args = []*graph.Tensor{c.mask, c.positions, c.cachePosition}
		if v.Transformers.AtLeast(keywordsSince) {
			return nil, args
		}
		return args, nil
	}
}

// updateCache is cache.update; a window's layer first puts its width on the
// card (DynamicSlidingWindowLayer.lazy_initialization).
func (c *decoderContext) updateCache(f *graph.Frame, keyName, valueName string, key, value *graph.Tensor) (k, v *graph.Tensor) {
	if c.cache != nil && c.cache.copies && c.slides {
		c.cache.tensors = append(c.cache.tensors, f.Own(f.Empty(graph.I64)))
	}
	return c.cache.update(f, keyName, valueName, key, value)
}

// causalLM is a decoder with a language modelling head and its loss.
type causalLM struct {
	*graph.Module
	base, head *graph.Module
	ctx        *decoderContext
	build      Build
	// slices says that the head's input is written hidden_states[:, rows, :],
	// whose three slices are recorded.
	slices bool
	// scores is what is done to the head's result; nil is nothing.
	scores func(f *graph.Frame, logits *graph.Tensor) *graph.Tensor
	// roundTrip says that logits are cast to fp32 for the loss, and both back to
	// the hidden states' type after it.
	roundTrip bool
	// ownLoss says that the model takes the loss itself, of the logits in their
	// own type, and takes no count of the labels.
	ownLoss bool
}

// takesOwnLoss marks a model that was moved to the common loss functions last,
// with 4.49 (BloomForCausalLM and others like it @v4.48.1).
func (lm *causalLM) takesOwnLoss() {
	lm.ownLoss = lm.build.Versions.Transformers.Before(paddedLabelsSince)
}

// items says how the loss is taken and how a Trainer counts its labels.
func (lm *causalLM) items() Items {
	upcast := "fp32"
	if lm.ownLoss && !lm.roundTrip {
		upcast = "none"
	}
	return Items{Uncounted: lm.ownLoss, LossUpcast: upcast, ShiftCopies: lm.build.Versions.Transformers.Before(paddedLabelsSince)}
}

// newCausalLM puts a head on a decoder; a tied one shares the embeddings'
// weight.
func newCausalLM(class, name string, base, embeddings *graph.Module, ctx *decoderContext, b Build, hidden, vocab int64, tied bool) *causalLM {
	lm := &causalLM{Module: graph.NewModule(class), base: base, ctx: ctx, build: b}
	lm.Child(name, base)
	lm.head = lm.Child("lm_head", linear(b.DType, hidden, vocab, false))
	if tied {
		lm.head.Params[0].Tied = embeddings.Params[0]
	}
	return lm
}

// setHead puts another head in the place of the usual one.
func (lm *causalLM) setHead(name string, head *graph.Module) {
	lm.Children = lm.Children[:1]
	lm.head = lm.Child(name, head)
}

// run is the model's forward with labels.
func (lm *causalLM) run(f *graph.Frame, b Batch) Outputs {
	lm.ctx.batch, lm.ctx.cache = b, nil
	if lm.build.Patches.Scored != nil {
		return lm.scored(f, b)
	}
	if lm.build.UseCache {
		lm.ctx.cache = &keyValueCache{copies: lm.build.Versions.Transformers.AtLeast(copyingCacheSince)}
	}
	tokens, mask := b.Tensor(InputIDs), b.Tensor(AttentionMask)
	out := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(lm.base, tokens, mask))
		kept := hidden
		if lm.slices {
			kept = f.SliceWhole(hidden, 3)
		}
		if fused := lm.build.Patches.LinearCrossEntropy; fused != nil {
			return []*graph.Tensor{f.Let("loss", linearCausalLMLoss(f, b, kept, lm.head, fused)), nil}
		}
		logits := f.Let("logits", f.Call1(lm.head, kept))
		if lm.scores != nil {
			logits = f.Let("logits", lm.scores(f, logits))
		}
		if lm.ownLoss {
			if lm.roundTrip {
				logits = f.Let("logits", f.To(logits, graph.F32))
			}
			loss := f.Let("loss", ownCausalLMLoss(f, logits, b.Tensor(Labels)))
			if lm.roundTrip {
				logits = f.Let("logits", f.To(logits, hidden.DType))
				loss = f.Let("loss", f.To(loss, hidden.DType))
			}
			return []*graph.Tensor{loss, logits}
		}
		if f.Versions.Transformers.Before(lossFunctionSince) {
			logits = f.Let("logits", f.To(logits, graph.F32))
		}
		if lm.roundTrip {
			logits = f.Let("logits", f.To(logits, graph.F32))
		}
		loss := f.Let("loss", causalLMLoss(f, b, logits, lm.build.Patches.CrossEntropy))
		if lm.roundTrip {
			logits = f.Let("logits", f.To(logits, hidden.DType))
			loss = f.Let("loss", f.To(loss, hidden.DType))
		}
		return []*graph.Tensor{loss, logits}
	}, tokens, mask, b.Tensor(Labels))
	o := Outputs{Loss: f.Own(out[0])}
	if out[1] != nil {
		o.Logits = f.Own(out[1])
	}
	if lm.ctx.cache != nil {
		o.Cache = lm.ctx.cache.tensors
	}
	return o
}

// causalLMLoss is ForCausalLMLoss: logits in fp32, labels shifted by padding,
// and the sum over the labels divided by their number where a trainer passes it
// (transformers/loss/loss_utils.py).
func causalLMLoss(f *graph.Frame, b Batch, logits *graph.Tensor, crossEntropy lossFunc) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(perItem(f, b, f.Let("loss", shiftedCrossEntropy(f, crossEntropy, in...))))
	}, logits, b.Tensor(Labels))[0]
}

// ownCausalLMLoss is the loss inside a model's forward, whose names last as long
// as the forward.
func ownCausalLMLoss(f *graph.Frame, logits, labels *graph.Tensor) *graph.Tensor {
	rows, vocab := logits.Shape.At(-2), logits.Shape.At(-1)
	var loss *graph.Tensor
	f.As(graph.Logits, func() {
		shifted := f.Let("shift_logits", f.Contiguous(f.SliceWhole(f.Slice(logits, -2, 0, rows-1), 1)))
		target := f.Let("shift_labels", f.Contiguous(f.Slice(labels, -1, 1, rows)))
		loss = f.CrossEntropy(f.View(shifted, -1, vocab), f.View(target, -1))
	})
	return loss
}

// lossFunctionSince is when the loss moved out of the model's forward, which had
// bound the logits in fp32 to the name it returned.
var lossFunctionSince = spec.Version{4, 46}

// paddedLabelsSince is when the shift moved from logits to labels, which spares
// a copy of the logits in fp32.
var paddedLabelsSince = spec.Version{4, 49}

func shiftedCrossEntropy(f *graph.Frame, crossEntropy lossFunc, in ...*graph.Tensor) *graph.Tensor {
	if crossEntropy == nil {
		crossEntropy = (*graph.Frame).CrossEntropy
	}
	vocab := in[0].Shape.At(-1)
	var loss *graph.Tensor
	f.As(graph.Logits, func() {
		logits := f.Let("logits", f.To(in[0], graph.F32))
		var shifted *graph.Tensor
		if f.Versions.Transformers.AtLeast(paddedLabelsSince) {
			labels := f.Let("labels", f.PadLast(in[1], 1))
			shifted = f.Let("shift_labels", f.Contiguous(f.Slice(labels, -1, 1, labels.Shape.At(-1))))
		} else {
			rows := logits.Shape.At(-2)
			logits = f.Let("shift_logits", f.Contiguous(f.SliceWhole(f.Slice(logits, -2, 0, rows-1), 1))) // logits[..., :-1, :]
			shifted = f.Let("shift_labels", f.Contiguous(f.Slice(in[1], -1, 1, rows)))
		}
		logits = f.Let("shift_logits", f.View(logits, -1, vocab))
		shifted = f.Let("shift_labels", f.View(shifted, -1))
		loss = crossEntropy(f, logits, shifted)
	})
	return loss
}
