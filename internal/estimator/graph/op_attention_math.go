package graph

var onesRule = &Rule{Name: "ones", Source: "aten/src/ATen/native/transformers/attention.cpp:_scaled_dot_product_attention_math"}

// mathAttention is _scaled_dot_product_attention_math: ordinary operations, in
// fp32 for the 16-bit types. Its C++ locals live until it returns.
func (f *Frame) mathAttention(q, k, v, mask *Tensor, a Attention) *Tensor {
	return f.Func(func(f *Frame, in ...*Tensor) []*Tensor {
		from, all := in[0].DType, in[0].Shape.D[1]
		q := f.Let("query_acc", f.To(in[0], F32))
		k := f.Let("key_acc", f.To(in[1], F32))
		v := f.Let("value_acc", f.To(in[2], F32))
		mask := f.Let("attn_mask", in[3])
		q = f.Let("query", f.MulScalar(q))
		if a.Causal {
			mask = f.Let("attn_mask", f.lowerTriangle(q.Shape.D[2], k.Shape.D[2]))
		}
		if mask != nil {
			mask = f.Let("attn_mask", f.additiveMask(mask, F32))
		}
		if k.Shape.D[1] != all {
			k = f.Let("k_expand", f.repeatHeads(k, all))
			v = f.Let("v_expand", f.repeatHeads(v, all))
		}
		weights := f.Let("attn", f.Matmul(q, f.MulScalar(f.Transpose(k, -2, -1))))
		weights = f.Let("attn", f.safeSoftmax(weights))
		weights = f.Let("attn", f.Dropout(weights, a.Dropout))
		if from == F32 {
			return []*Tensor{f.Matmul(weights, v)}
		}
		f.Let("weights", f.To(weights, from)) // returned too, and evaluated first
		product := f.Let("result", f.Matmul(weights, v))
		return []*Tensor{f.To(product, from)}
	}, q, k, v, mask)[0]
}

// lowerTriangle is ones(rows, columns).tril() of booleans.
func (f *Frame) lowerTriangle(rows, columns int64) *Tensor {
	f.rule = onesRule
	ones := f.alloc(D(rows, columns), Bool)
	lower := f.alloc(ones.Shape, Bool)
	f.release(ones)
	return f.produce(lower)
}

// repeatHeads is t.repeat_interleave(n, 1) up to as many heads.
func (f *Frame) repeatHeads(t *Tensor, all int64) *Tensor {
	s := t.Shape.D
	wide := f.Expand(f.Unsqueeze(t, 2), s[0], s[1], all/s[1], s[2], s[3])
	return f.View(f.clone(wide), s[0], all, s[2], s[3])
}

var safeSoftmaxRule = &Rule{Name: "_safe_softmax", Source: "aten/src/ATen/native/transformers/attention.cpp:_safe_softmax", Backward: softmaxBackward}

// safeSoftmax is a softmax over the last dimension in which rows that are
// masked everywhere become zeros, in place.
func (f *Frame) safeSoftmax(x *Tensor) *Tensor {
	n := f.record(safeSoftmaxRule, x)
	if n != nil {
		n.attrs.DType = x.DType
	}
	out := f.alloc(x.Shape, x.DType)
	masked := f.alloc(x.Shape, Bool)
	rows := f.alloc(x.Shape.With(-1, 1), Bool)
	zero := f.alloc(D(), x.DType)
	f.letGo(zero, rows, masked)
	f.output(n, out, 0)
	f.save(n, out)
	f.consume(x)
	return f.produce(out)
}
