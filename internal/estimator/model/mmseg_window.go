package model

import "memplan/internal/estimator/graph"

// splitHeads is qkv.reshape(…).permute(…) and the three parts of it.
func splitHeads(f *graph.Frame, x *graph.Tensor, n, tokens, heads int64) (q, k, v *graph.Tensor) {
	x = f.Let("qkv", f.Permute(f.Reshape(x, n, tokens, 3, heads, -1), 2, 0, 3, 1, 4))
	return f.Let("q", f.Select(x, 0)), f.Let("k", f.Select(x, 0)), f.Let("v", f.Select(x, 0))
}

// biasedAttention is the attention of a window with a bias by relative position,
// and perhaps a mask for windows that hold strangers.
func biasedAttention(f *graph.Frame, q, k, v *graph.Tensor, table, index *graph.Param, mask *graph.Tensor) *graph.Tensor {
	n, heads, tokens := q.Shape.D[0], q.Shape.D[1], q.Shape.D[2]
	q = f.Let("q", f.MulScalar(q))
	attn := f.Let("attn", f.Matmul(q, f.Transpose(k, -2, -1)))
	bias := f.View(f.IndexRows(table.T(), f.View(index.T(), -1)), tokens, tokens, -1)
	bias = f.Let("relative_position_bias", bias)
	bias = f.Let("relative_position_bias", f.Contiguous(f.Permute(bias, 2, 0, 1)))
	attn = f.Let("attn", f.Add(attn, f.Unsqueeze(bias, 0)))
	if mask != nil {
		windows := mask.Shape.D[0]
		attn = f.Let("attn", f.Add(f.View(attn, n/windows, windows, heads, tokens, tokens), f.Unsqueeze(f.Unsqueeze(mask, 1), 0)))
		attn = f.Let("attn", f.View(attn, -1, heads, tokens, tokens))
	}
	attn = f.Let("attn", f.Softmax(attn, attn.DType))
	x := f.Transpose(f.Matmul(attn, v), 1, 2)
	return f.Let("x", f.Reshape(x, n, tokens, -1))
}
