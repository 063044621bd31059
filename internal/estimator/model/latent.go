package model

import "memplan/internal/estimator/graph"

// Multi-head latent attention: queries, and keys with values, come from narrow
// latents (DeepSeek-V2, section 2.1).

// latentConfig are its widths.
type latentConfig struct {
	queryRank, rank int64 // of the latents; 0 is none for the queries
	nope, rope      int64 // columns of a head that positions leave alone, and turn
	value           int64 // columns of a value head
	rotate          rotaryFunc
}

func readLatent(c *Config) latentConfig {
	a := latentConfig{
		rank: c.IntOr(512, "kv_lora_rank"), rope: c.IntOr(64, "qk_rope_head_dim"), nope: c.IntOr(128, "qk_nope_head_dim"), value: c.IntOr(128, "v_head_dim"),
	}
	if !c.Null("q_lora_rank") {
		a.queryRank = c.IntOr(1536, "q_lora_rank")
	}
	return a
}

// latentAttention keeps keys and values narrow until they are needed: what is
// cached is the latent.
func latentAttention(l llamaConfig, a latentConfig, b Build, ctx *llamaContext) *graph.Module {
	m := graph.NewModule(l.class + "Attention")
	queries := latentQueries(l, a, b, m)
	compress := m.Child("kv_a_proj_with_mqa", linear(b.DType, l.hidden, a.rank+a.rope, l.qkvBias))
	norm := m.Child("kv_a_layernorm", l.norm(b.DType, a.rank))
	expand := m.Child("kv_b_proj", linear(b.DType, a.rank, l.heads*(a.nope+a.value), false))
	out := m.Child("o_proj", linear(b.DType, l.heads*a.value, l.hidden, l.outBias))
	shape := attentionShape{groups: 1, dropout: l.attentionDropout}
	shape.eager = eagerAttention(shape)
	shape.positions = func() *graph.Tensor { return ctx.positions }
	attend := attentionInterface(b, shape)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		q := f.Let("q_states", queries(f, in[0]))
		q = f.Let("q_states", f.Transpose(f.View(q, batch, tokens, -1, a.nope+a.rope), 1, 2))
		parts := f.SplitSizes(q, -1, a.nope, a.rope)
		qPass, qRot := f.Let("q_pass", parts[0]), f.Let("q_rot", parts[1])
		compressed := f.Let("compressed_kv", f.Call1(compress, in[0]))
		parts = f.SplitSizes(compressed, -1, a.rank, a.rope)
		latent, kRot := f.Let("kv_nope", parts[0]), f.Let("k_rot", parts[1])
		latent = f.Let("kv_nope", f.Call1(norm, latent))
		latent = f.Let("kv_nope", f.View(latent, batch, 1, tokens, a.rank))
		kRot = f.Let("k_rot", f.View(kRot, batch, 1, tokens, a.rope))
		turned := a.rotate(f, qRot, kRot, ctx.cos, ctx.sin)
		qRot, kRot = f.Let("q_rot", turned[0]), f.Let("k_rot", turned[1])
		latent, kRot = ctx.updateCache(f, "kv_nope", "k_rot", latent, kRot)
		query := f.Let("query_states", f.Cat(-1, qPass, qRot))
		states := a.expandKV(f, expand, latent, kRot)
		key, value := f.Let("key_states", states[0]), f.Let("value_states", states[1])
		result := attend(f, query, key, value, ctx.mask)
		output, weights := f.Let("attn_output", result[0]), f.Let("attn_weights", result[1])
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		return []*graph.Tensor{f.Let("attn_output", f.Call1(out, output)), weights}
	}
	return m
}

// latentQueries adds the projection of the queries, through a latent or at
// once.
func latentQueries(l llamaConfig, a latentConfig, b Build, m *graph.Module) func(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	width := l.heads * (a.nope + a.rope)
	if a.queryRank == 0 {
		project := m.Child("q_proj", linear(b.DType, l.hidden, width, false))
		return func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.Call1(project, x) }
	}
	narrow := m.Child("q_a_proj", linear(b.DType, l.hidden, a.queryRank, l.qkvBias))
	norm := m.Child("q_a_layernorm", l.norm(b.DType, a.queryRank))
	wide := m.Child("q_b_proj", linear(b.DType, a.queryRank, width, false))
	return func(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
		return f.Call1(wide, f.Call1(norm, f.Call1(narrow, x)))
	}
}

// expandKV makes keys and values of every head from the latent; the turned
// columns are the same in all heads.
func (a latentConfig) expandKV(f *graph.Frame, expand *graph.Module, latent, kRot *graph.Tensor) []*graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[2]
		wide := f.Let("kv_nope", f.Transpose(f.View(f.Call1(expand, in[0]), batch, tokens, -1, a.nope+a.value), 1, 2))
		heads := wide.Shape.D[1]
		parts := f.SplitSizes(wide, -1, a.nope, a.value)
		pass, value := f.Let("k_nope", parts[0]), f.Let("value_states", parts[1])
		rot := f.Let("k_rot", f.Expand(in[1], batch, heads, tokens, a.rope))
		key := f.Let("key_states", f.Empty(wide.DType, batch, heads, tokens, a.nope+a.rope))
		key = f.Let("key_states", f.CopyInto(key, pass))
		key = f.Let("key_states", f.CopyInto(key, rot))
		return []*graph.Tensor{key, value}
	}, latent, kRot)
}

// applyRotaryInterleaved turns pairs of neighbouring columns
// (apply_rotary_pos_emb_interleave).
func applyRotaryInterleaved(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	half := in[2].Shape.At(-1) / 2
	cos := f.Let("cos", f.Unsqueeze(f.Slice(in[2], -1, 0, half), 1))
	sin := f.Let("sin", f.Unsqueeze(f.Slice(in[3], -1, 0, half), 1))
	cut := func(name string, x *graph.Tensor) (even, odd *graph.Tensor) {
		even = f.Let(name+"1", f.SliceStep(x, 0, 2))
		return even, f.Let(name+"2", f.SliceStep(x, 1, 2))
	}
	q1, q2 := cut("q", in[0])
	k1, k2 := cut("k", in[1])
	turn := func(even, odd *graph.Tensor) *graph.Tensor {
		left := f.Mul(even, cos)
		left = f.Sub(left, f.Mul(odd, sin))
		right := f.Mul(odd, cos)
		return f.Cat(-1, left, f.Add(right, f.Mul(even, sin)))
	}
	q := f.Let("q_embed", turn(q1, q2))
	return []*graph.Tensor{q, f.Let("k_embed", turn(k1, k2))}
}

// complexRotary gives the turn of every position and pair of columns as a
// complex number, written here as two in fp32.
func complexRotary(b Build, width int64) *graph.Module {
	m := graph.NewModule("DeepseekV2RotaryEmbedding")
	invFreq := m.Buffer("inv_freq", b.DType, width/2)
	m.Buffer("original_inv_freq", b.DType, width/2)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		var turns *graph.Tensor
		f.NoGrad(func() {
			position := f.To(f.Unsqueeze(in[1], -1), graph.F32)
			freqs := f.Let("freqs", f.Mul(position, f.To(invFreq.T(), graph.F32)))
			ones := f.Empty(graph.F32, freqs.Shape.Slice()...)
			turns = f.Let("freqs_cis", f.Empty(graph.F32, append(freqs.Shape.Slice(), 2)...)) // polar
			f.Drop(ones)
			turns = f.Let("freqs_cis", f.MulScalar(turns))
		})
		return []*graph.Tensor{turns, nil}
	}
	return m
}

// applyComplexRotary multiplies pairs of columns, seen as complex numbers, by
// the turns (apply_rotary_emb of DeepSeek V2).
func applyComplexRotary(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	pairs := func(x *graph.Tensor) *graph.Tensor {
		shape := x.Shape.Slice()
		return f.Reshape(f.To(x, graph.F32), append(shape[:3], -1, 2)...)
	}
	q, k := f.Let("xq_", pairs(in[0])), f.Let("xk_", pairs(in[1]))
	turns := f.Let("freqs_cis", f.Unsqueeze(in[2], 1))
	turn := func(pairs, x *graph.Tensor) *graph.Tensor {
		turned := f.MulComplex(pairs, turns)
		return f.To(f.Reshape(turned, x.Shape.Slice()...), x.DType)
	}
	q = f.Let("xq_out", turn(q, in[0]))
	return []*graph.Tensor{q, f.Let("xk_out", turn(k, in[1]))}
}
