package model

import "memplan/internal/estimator/graph"

// deltaChunk is how many tokens are computed at once.
const deltaChunk = 64

// chunkDeltaRule is torch_chunk_gated_delta_rule, the gated delta rule without
// the kernels of flash-linear-attention. It takes queries, keys, values, decay
// and beta with tokens before heads, and returns the output and, where a cache
// keeps it, the last state.
func chunkDeltaRule(n deltaNet, cache *keyValueCache) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens, initial := in[0].Shape.D[0], in[0].Shape.D[1], in[0].DType
		c := deltaChunks(f, n, in)
		state := f.Let("last_recurrent_state", f.Empty(graph.F32, batch, n.valueHeads, n.keyDim, n.valueDim))
		core := f.Let("core_attn_out", f.ZerosLike(c.values))
		query := f.Let("query", f.Mul(c.query, f.Unsqueeze(f.Exp(c.decay), -1)))
		rest := f.Sub(f.SliceLast(c.decay, -1, 1), c.decay)
		key := f.Let("key", f.Mul(c.key, f.Unsqueeze(f.Exp(rest), -1)))
		decay := f.Let("chunk_decay", f.Unsqueeze(f.Unsqueeze(f.Exp(f.Select(c.decay, -1)), -1), -1))
		at := func(t *graph.Tensor) *graph.Tensor { return f.Select(f.SliceWhole(t, 2), 2) } // t[:, :, i]
		var mark int32
		for range c.query.Shape.D[2] {
			values := at(c.values)
			values = f.Let("v_new", f.Sub(values, f.Matmul(at(c.keys), state)))
			inter := f.Let("inter_chunk_attn", f.Matmul(at(query), state))
			part := f.Add(inter, f.Matmul(at(c.attention), values))
			core = f.Let("core_attn_out", f.CopyInto(core, part))
			mark = f.Recorded()
			kept := f.Mul(state, at(decay))
			state = f.Let("last_recurrent_state", f.Add(kept, f.Matmul(f.Transpose(at(key), -1, -2), values)))
		}
		left := f.Abandon(state, mark) // no loss depends on the last state
		if cache != nil {
			cache.tensors = append(cache.tensors, left...)
		} else {
			for _, t := range left {
				f.Forget(t)
			}
			f.Del("last_recurrent_state")
			state = nil
		}
		core = f.Let("core_attn_out", f.Reshape(core, batch, n.valueHeads, -1, n.valueDim))
		core = f.Let("core_attn_out", f.Slice(f.SliceWhole(core, 2), 2, 0, tokens))
		core = f.Let("core_attn_out", f.ToContiguous(f.Transpose(core, 1, 2), initial))
		return []*graph.Tensor{core, state}
	}
}

// deltaParts are what the scan over chunks reads: queries, keys and cumulated
// decay of every chunk, its attention within, and what is left of its values and
// keys once the tokens before each in it are accounted for.
type deltaParts struct{ query, key, decay, attention, values, keys *graph.Tensor }

// deltaChunks is what comes before the scan, in the function's own frame.
func deltaChunks(f *graph.Frame, n deltaNet, in []*graph.Tensor) deltaParts {
	names := []string{"query", "key", "value", "decay", "beta"}
	x := make([]*graph.Tensor, len(in))
	for i := range in {
		x[i] = f.Let(names[i], in[i])
	}
	if repeat := n.valueHeads / n.keyHeads; repeat > 1 { // each head of keys serves several of values
		for i := range 2 {
			x[i] = f.Let(names[i], repeatHeads(f, x[i], repeat))
		}
	}
	for _, i := range []int{0, 1, 2, 4, 3} {
		x[i] = f.ToContiguous(f.Transpose(x[i], 1, 2), graph.F32)
	}
	for i := range x {
		x[i] = f.Let(names[i], x[i])
	}
	for i := range 2 {
		x[i] = f.Let(names[i], f.Func(l2norm, x[i])[0])
	}
	x[0] = f.Let(names[0], f.MulScalar(x[0]))

	pad := -x[0].Shape.D[2] & (deltaChunk - 1)
	for i := range 3 {
		x[i] = f.PadDim(x[i], -2, pad)
	}
	for i := range 3 {
		x[i] = f.Let(names[i], x[i])
	}
	beta, padded := f.PadDim(x[4], -1, pad), f.PadDim(x[3], -1, pad)
	beta, decay := f.Let("beta", beta), f.Let("decay", padded)

	valueBeta := f.Let("v_beta", f.Mul(x[2], f.Unsqueeze(beta, -1)))
	keyBeta := f.Let("k_beta", f.Mul(x[1], f.Unsqueeze(beta, -1)))
	chunked := func(name string, t *graph.Tensor) *graph.Tensor {
		return f.Let(name, f.Reshape(t, t.Shape.D[0], t.Shape.D[1], -1, deltaChunk, t.Shape.D[3]))
	}
	query, key := chunked("query", x[0]), chunked("key", x[1])
	keyBeta, valueBeta = chunked("k_beta", keyBeta), chunked("v_beta", valueBeta)
	decay = f.Let("decay", f.Reshape(decay, decay.Shape.D[0], decay.Shape.D[1], -1, deltaChunk))
	upper := f.Let("strictly_upper_mask", f.Triu(f.Empty(graph.Bool, deltaChunk, deltaChunk)))
	total := f.Let("cum_decay", f.CumsumLast(decay))

	pairs := f.Let("pairwise_decay", f.Sub(f.Unsqueeze(total, 4), f.Unsqueeze(total, 3)))
	pairs = f.Let("pairwise_decay", f.MaskedFill(pairs, upper))
	pairs = f.Let("pairwise_decay", f.Exp(pairs))
	system := f.Let("ut_system", f.Mul(f.Matmul(keyBeta, f.Transpose(key, -1, -2)), pairs))
	attention := f.Let("intra_chunk_attn", f.Mul(f.Matmul(query, f.Transpose(key, -1, -2)), pairs))
	decayed := f.Let("decayed_k_beta", f.Mul(keyBeta, f.Unsqueeze(f.Exp(total), -1)))
	values := f.Let("new_values", f.SolveTriangular(system, valueBeta))
	keys := f.Let("k_cumdecay", f.SolveTriangular(system, decayed))
	return deltaParts{query: query, key: key, decay: total, attention: attention, values: values, keys: keys}
}

// repeatHeads is repeat_interleave of the heads of [batch, tokens, heads, width].
func repeatHeads(f *graph.Frame, t *graph.Tensor, times int64) *graph.Tensor {
	s := t.Shape.D
	wide := f.Contiguous(f.Expand(f.Unsqueeze(t, 3), s[0], s[1], s[2], times, s[3]))
	return f.View(wide, s[0], s[1], s[2]*times, s[3])
}

// l2norm divides by the length of the last dimension.
func l2norm(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x := in[0]
	inverse := f.Let("inv_norm", f.Rsqrt(f.AddScalar(f.SumOver(f.Mul(x, x), -1, true))))
	return one(f.Mul(x, inverse))
}
