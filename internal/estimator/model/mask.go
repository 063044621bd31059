package model

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// maskingUtilsSince is when transformers began to build masks in masking_utils.
var maskingUtilsSince = spec.Version{4, 53}

// maskInputs is what a causal mask is made from.
type maskInputs struct {
	embeds    *graph.Tensor // inputs_embeds: gives sizes and type
	attention *graph.Tensor // attention_mask [batch, tokens], or nil
	positions *graph.Tensor // position_ids [1, tokens]
	padded    bool          // attention_mask hides some tokens
	cached    bool          // the model fills a cache
	// window is how many tokens back a query sees; 0 is all of them.
	window int64
	// exact says that an additive mask without attention_mask has as many
	// columns as there are tokens, not one more.
	exact bool
	// compared says that an additive mask is made by comparing positions, which
	// families with windows do where others cut a triangle.
	compared bool
	// bidirectional says that a query sees the keys behind it too.
	bidirectional bool
	// always says that a mask is made even where the kernel could be told to be
	// causal (allow_is_causal_skip=False).
	always bool
}

// windowed reports whether there are tokens that the window hides.
func (in maskInputs) windowed() bool { return in.window > 0 && in.embeds.Shape.D[1] >= in.window }

// sizes are the batch size and the number of tokens.
func (in maskInputs) sizes() (batch, tokens int64) { return in.embeds.Shape.D[0], in.embeds.Shape.D[1] }

// causalMask is the mask of the Llama family, as the version makes it. The
// result is a temporary, or nil.
func causalMask(f *graph.Frame, b Build, in maskInputs) *graph.Tensor {
	if b.Versions.Transformers.AtLeast(maskingUtilsSince) {
		return createCausalMask(f, b, in)
	}
	return updateCausalMask(f, b, in)
}

// createCausalMask is create_causal_mask of masking_utils: nothing where the
// kernel can be told to be causal, else [batch, 1, tokens, tokens], boolean for
// sdpa and additive for eager. The result is a temporary, or nil.
func createCausalMask(f *graph.Frame, b Build, in maskInputs) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		padding := in.attention
		if padding != nil {
			padding = f.Let("attention_mask", f.To(padding, graph.Bool))
		} else if !in.cached && in.positions != nil {
			findPackedSequences(f, in)
		}
		switch b.Attention.Kernel {
		case "eager":
			allowed := f.Let("mask", booleanMask(f, in, padding))
			return one(f.Choose(allowed, in.embeds.DType))
		case "flash":
			if padding != nil {
				f.Drop(f.All(padding))
			}
			return one(nil)
		}
		if !in.windowed() && !in.always && (padding == nil || !hidesTokens(f, in, padding)) {
			return one(nil)
		}
		return one(booleanMask(f, in, padding))
	})[0]
}

// hidesTokens is _ignore_causal_mask_sdpa's question: a mask's ones are counted
// on the card, and once more when some are missing (fast_all).
func hidesTokens(f *graph.Frame, in maskInputs, mask *graph.Tensor) bool {
	count := func() { f.Drop(f.Compare(f.Sum(mask), nil)) }
	count()
	if in.padded {
		count()
	}
	return in.padded
}

// findPackedSequences is find_packed_sequence_indices: without mask and cache
// it looks for positions that do not follow on the one before.
func findPackedSequences(f *graph.Frame, in maskInputs) {
	f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in.sizes()
		positions := f.Let("position_ids", f.Expand(in.positions, batch, tokens))
		first := f.Let("first_dummy_value", f.AddScalar(f.Slice(positions, 1, 0, 1)))
		difference := f.Let("position_diff", f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
			joined := f.Let("joined", f.Cat(-1, first, positions))
			return one(f.Sub(f.Slice(joined, 1, 1, tokens+1), f.Slice(joined, 1, 0, tokens)))
		})[0])
		packed := f.Let("packed_sequence_mask", f.Cumsum(f.Compare(difference, nil)))
		f.Drop(f.All(f.Compare(f.Slice(packed, 1, tokens-1, tokens), nil)))
		return nil
	})
}

// booleanMask is sdpa_mask: true where a query may see a key.
func booleanMask(f *graph.Frame, in maskInputs, padding *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in.sizes()
		batches := f.Let("batch_arange", f.Arange(batch))
		f.Let("head_arange", f.Arange(1))
		queries := f.Let("q_arange", f.AddScalar(f.Arange(tokens)))
		seen := tokens
		if padding != nil {
			seen = padding.Shape.At(-1)
		}
		keys := f.Let("kv_arange", f.AddScalar(f.Arange(seen)))
		rows := f.Let("q", f.View(queries, 1, 1, tokens, 1))
		columns := f.Let("kv", f.View(keys, 1, 1, 1, seen))
		allowed := func(f *graph.Frame) *graph.Tensor { return f.Compare(columns, rows) }
		if in.bidirectional {
			allowed = func(f *graph.Frame) *graph.Tensor { return f.Compare(rows, nil) } // q_idx >= 0
		}
		switch {
		case in.window > 0 && in.bidirectional:
			near := func(f *graph.Frame) *graph.Tensor { return f.Compare(f.Abs(f.Sub(rows, columns)), nil) }
			allowed = andMasks(near, allowed)
		case in.window > 0:
			near := func(f *graph.Frame) *graph.Tensor { return f.Compare(columns, f.AddScalar(rows)) }
			allowed = andMasks(near, allowed)
		}
		if padding != nil {
			present := func(f *graph.Frame) *graph.Tensor { return f.Gather(padding, f.View(batches, batch, 1, 1, 1), columns) }
			allowed = andMasks(allowed, present)
		}
		return one(f.Expand(allowed(f), batch, -1, tokens, seen))
	})[0]
}

// andMasks is and_masks: where all of the functions allow it.
func andMasks(fns ...func(f *graph.Frame) *graph.Tensor) func(f *graph.Frame) *graph.Tensor {
	return func(f *graph.Frame) *graph.Tensor {
		return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
			result := f.Let("result", f.Empty(graph.Bool))
			for _, fn := range fns {
				result = f.Let("result", f.And(result, fn(f)))
			}
			return one(result)
		})[0]
	}
}

// updateCausalMask is LlamaModel._update_causal_mask: an additive mask.
func updateCausalMask(f *graph.Frame, b Build, in maskInputs) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		switch b.Attention.Kernel {
		case "flash":
			if in.attention != nil {
				f.Drop(f.All(f.Compare(in.attention, nil)))
			}
			return one(nil)
		case "sdpa":
			if !in.windowed() && ignoredBySDPA(f, in) {
				return one(nil)
			}
		}
		mask := f.Let("causal_mask", additiveCausalMask(f, in))
		if b.Attention.Kernel == "sdpa" && in.attention != nil {
			mask = f.Let("causal_mask", unmaskUnattended(f, mask))
		}
		return one(mask)
	})[0]
}

// ignoredBySDPA is AttentionMaskConverter._ignore_causal_mask_sdpa.
func ignoredBySDPA(f *graph.Frame, in maskInputs) bool {
	if in.attention != nil {
		f.Drop(f.All(f.Compare(in.attention, nil)))
	}
	return !in.padded
}

// additiveCausalMask is _prepare_4d_causal_attention_mask_with_cache_position.
func additiveCausalMask(f *graph.Frame, in maskInputs) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in.sizes()
		target := tokens
		if in.attention == nil && !in.exact {
			target++
		}
		mask := f.Let("causal_mask", f.Empty(in.embeds.DType, tokens, target))
		if in.compared {
			comparePositions(f, in, target)
		} else {
			mask = f.Let("causal_mask", f.Triu(mask))
			f.Drop(f.Compare(f.Arange(target), f.View(in.positions, tokens, 1)))
		}
		mask = f.Let("causal_mask", f.Expand(mask, batch, 1, tokens, target))
		if in.attention == nil {
			return one(mask)
		}
		mask = f.Let("causal_mask", f.Contiguous(mask))
		padding := f.Let("padding_mask", f.Add(mask, f.View(in.attention, batch, 1, 1, tokens)))
		padding = f.Let("padding_mask", f.Compare(padding, nil))
		f.Drop(f.MaskedFill(mask, padding))
		return one(mask)
	})[0]
}

// comparePositions finds what lies ahead of a query or behind its window.
func comparePositions(f *graph.Frame, in maskInputs, target int64) {
	rows := f.Let("cache_position", f.View(in.positions, in.embeds.Shape.D[1], 1))
	f.Let("diagonal_attend_mask", f.Compare(f.Arange(target), rows))
	if in.window > 0 {
		f.Let("sliding_attend_mask", f.Compare(f.Arange(target), f.AddScalar(rows)))
	}
}

// unmaskUnattended is AttentionMaskConverter._unmask_unattended: rows that are
// masked everywhere attend to all.
func unmaskUnattended(f *graph.Frame, mask *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Mul(in[0], f.Not(f.AllLast(f.Compare(in[0], nil)))))
	}, mask)[0]
}

// converted4D is _prepare_4d_causal_attention_mask_for_sdpa, as GPT-2 used it.
func converted4D(f *graph.Frame, in maskInputs) *graph.Tensor {
	if ignoredBySDPA(f, in) {
		return nil
	}
	mask := f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		causal := f.Let("causal_4d_mask", triangleOfMinima(f, in))
		expanded := f.Let("expanded_attn_mask", expandPadding(f, in))
		return one(f.MaskedFill(causal, f.To(expanded, graph.Bool)))
	})[0]
	return unmaskUnattended(f, mask)
}

// triangleOfMinima is AttentionMaskConverter._make_causal_mask.
func triangleOfMinima(f *graph.Frame, in maskInputs) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in.sizes()
		mask := f.Let("mask", f.Empty(graph.F32, tokens, tokens))
		positions := f.Let("mask_cond", f.Arange(tokens))
		f.Drop(f.Compare(positions, f.View(f.AddScalar(positions), tokens, 1)))
		mask = f.Let("mask", f.To(mask, in.embeds.DType))
		return one(f.Expand(mask, batch, 1, tokens, tokens))
	})[0]
}

// expandPadding is AttentionMaskConverter._expand_mask.
func expandPadding(f *graph.Frame, in maskInputs) *graph.Tensor {
	return f.Func(func(f *graph.Frame, _ ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in.sizes()
		wide := f.Expand(f.View(in.attention, batch, 1, 1, tokens), batch, 1, tokens, tokens)
		expanded := f.Let("expanded_mask", f.To(wide, in.embeds.DType))
		inverted := f.Let("inverted_mask", f.AddScalar(expanded))
		return one(f.MaskedFill(inverted, f.To(inverted, graph.Bool)))
	})[0]
}
