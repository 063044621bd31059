package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// LitGPT is the library whose one GPT module is every architecture.
const LitGPT = "litgpt"

// litgptFamily is the GPT of LitGPT: one program for Llama, Mistral, Gemma,
// GPT-NeoX, Phi and Falcon, read from their own config.json. Written from
// litgpt/model.py @v0.5.13 and @v0.4.8, and lit_gpt/model.py @8641822, the
// scripts that came before.
var litgptFamily = Family{
	Name:           LitGPT,
	Implementation: LitGPT,
	Source:         "Lightning-AI/litgpt:litgpt/model.py@v0.5.13, v0.4.8; lit_gpt/model.py@8641822",
	AdapterTargets: []string{"q_proj", "v_proj"},
	New:            newLitGPT,
}

var (
	// packageSince is the first release of the package litgpt. Its RMSNorm
	// computes in fp32, that of the scripts before it in the type it is given.
	packageSince = spec.Version{0, 1}
	// splitHeadsSince is when queries, keys and values of all heads came to lie
	// behind each other, where those of a group had.
	splitHeadsSince = spec.Version{0, 5, 5}
)

// litgptConfig is what of litgpt/config.py:Config the program needs.
type litgptConfig struct {
	embd, inner, layers         int64
	heads, groups, headSize     int64
	vocab, ropeColumns, block   int64
	bias, headBias, parallel    bool
	sharedNorm, rms, unitOffset bool
	scaled, gated               bool
	act                         string
}

// litgptReaders lists, by model_type, how a config.json becomes LitGPT's.
func litgptReaders() map[string]func(c *Config, g *litgptConfig) {
	llama := func(c *Config, g *litgptConfig) {
		g.inner, g.rms, g.gated, g.act = c.Int("intermediate_size"), true, true, "silu"
		g.groups = c.IntOr(g.heads, "num_key_value_heads")
		c.Refuses("attention_bias", "mlp_bias")
	}
	return map[string]func(c *Config, g *litgptConfig){
		"llama":   llama,
		"mistral": llama,
		"gemma": func(c *Config, g *litgptConfig) {
			llama(c, g)
			g.act, g.unitOffset, g.scaled = "gelu", true, true
		},
		"gpt_neox": func(c *Config, g *litgptConfig) {
			g.inner, g.act, g.bias = c.Int("intermediate_size"), "gelu", true
			g.parallel = c.Bool(true, "use_parallel_residual")
			g.ropeColumns = c.RotaryPart(c.Float(0.25, "rotary_pct"), "partial_rotary_factor", g.headSize)
		},
		"phi": func(c *Config, g *litgptConfig) {
			g.inner, g.act, g.bias = c.Int("intermediate_size"), "gelu", true
			g.parallel, g.sharedNorm, g.headBias = true, true, true
			g.ropeColumns = c.RotaryPart(0.5, "partial_rotary_factor", g.headSize)
		},
		"falcon": func(c *Config, g *litgptConfig) {
			g.inner, g.act, g.parallel = 4*g.embd, "gelu", true
			g.groups = 1
			if c.Bool(false, "new_decoder_architecture") {
				g.groups = c.IntOr(g.heads, "num_kv_heads")
			} else {
				g.sharedNorm = true
			}
		},
	}
}

func readLitGPT(c *Config) litgptConfig {
	g := litgptConfig{
		embd: c.Int("hidden_size"), layers: c.Int("num_hidden_layers"), heads: c.Int("num_attention_heads"),
		vocab: c.Int("vocab_size"), block: c.IntOr(2048, "max_position_embeddings"),
	}
	g.groups = g.heads
	g.headSize = c.IntOr(g.embd/g.heads, "head_dim")
	g.ropeColumns = g.headSize
	readers := litgptReaders()
	if read := readers[c.OneOf("model_type", sortedKeys(readers)...)]; read != nil {
		read(c, &g)
	}
	c.Divides("num_key_value_heads", "num_attention_heads", g.groups, g.heads)
	return g
}

func newLitGPT(c Config, b Build) (*Network, error) {
	g := readLitGPT(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := litGPT{Module: graph.NewModule("GPT"), config: g, ctx: &litgptRope{}}
	m.head = m.Child("lm_head", linear(b.DType, g.embd, g.vocab, g.headBias))
	m.transformer = m.Child("transformer", graph.NewModule("ModuleDict"))
	m.wte = m.transformer.Child("wte", embedding(b.DType, g.vocab, g.embd))
	blocks := m.transformer.Child("h", graph.NewModule("ModuleList"))
	for i := range g.layers {
		m.blocks = append(m.blocks, blocks.Child(strconv.FormatInt(i, 10), litgptBlock(g, b, m.ctx)))
	}
	m.norm = m.transformer.Child("ln_f", g.norm(b))
	// The script asks for the length of its longest sample once the model is on
	// the card, which computes the table anew, in fp32.
	table, rows := b.DType, g.block
	if 0 < b.Tokens && b.Tokens < g.block {
		table, rows = graph.F32, b.Tokens
	}
	m.cos = m.Buffer("cos", table, rows, g.ropeColumns)
	m.sin = m.Buffer("sin", table, rows, g.ropeColumns)
	m.Named("")
	return &Network{
		Root: m.Module, Embeddings: m.wte, Head: m.head, Blocks: m.blocks, LossApart: true, Heads: Heads{g.heads, g.groups, g.headSize},
		Forward:   func(f *graph.Frame, batch Batch) Outputs { return m.forward(f, batch, b.LossChunk) },
		Criterion: func(f *graph.Frame, batch Batch, out *Outputs) *graph.Tensor { return litgptLoss(f, b, batch, out) },
	}, nil
}

// litGPT is GPT of litgpt/model.py.
type litGPT struct {
	*graph.Module
	config                       litgptConfig
	head, transformer, wte, norm *graph.Module
	blocks                       []*graph.Module
	cos, sin                     *graph.Param
	ctx                          *litgptRope
}

// litgptRope is what every block is called with beside the hidden states.
type litgptRope struct{ cos, sin *graph.Tensor }

// forward gives the logits: of all tokens, or in chunks of so many tokens, to
// each of which the head is applied by itself.
func (m *litGPT) forward(f *graph.Frame, b Batch, chunk int64) Outputs {
	ids := b.Tensor(InputIDs)
	rows := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		tokens := in[0].Shape.At(-1)
		m.ctx.cos = f.Let("cos", f.Slice(m.cos.T(), 0, 0, min(tokens, m.cos.Shape.D[0])))
		m.ctx.sin = f.Let("sin", f.Slice(m.sin.T(), 0, 0, min(tokens, m.sin.Shape.D[0])))
		x := f.Let("x", f.Call1(m.wte, in[0]))
		if m.config.scaled {
			x = f.Let("x", f.MulScalar(x))
		}
		for block := range f.Layers(m.blocks) {
			x = f.Let("x", f.Call1(block, x))
		}
		x = f.Let("x", f.Call1(m.norm, x))
		if chunk <= 0 {
			return one(f.Call1(m.head, x))
		}
		var out []*graph.Tensor
		for _, part := range f.SplitSizes(x, 1, chunksOf(tokens, chunk)...) {
			out = append(out, f.Let("logits["+strconv.Itoa(len(out))+"]", f.Call1(m.head, part)))
		}
		return out
	}, ids)
	var o Outputs
	for _, t := range rows {
		o.Others = append(o.Others, f.Own(t))
	}
	return o
}

// chunksOf cuts n into parts of a size, the last of which may be smaller.
func chunksOf(n, size int64) []int64 {
	var parts []int64
	for ; n > 0; n -= size {
		parts = append(parts, min(n, size))
	}
	return parts
}

// litgptLoss is chunked_cross_entropy of the logits, which it shifts against the
// targets (litgpt/utils.py, litgpt/finetune/lora.py:fit). It puts the shortened
// last chunk in the place of the whole one.
func litgptLoss(f *graph.Frame, b Build, batch Batch, out *Outputs) *graph.Tensor {
	last := len(out.Others) - 1
	whole := out.Others[last]
	if len(out.Others) == 1 && b.LossChunk <= 0 {
		return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			logits := f.Let("logits", f.Reshape(f.Slice(in[0], 1, 0, in[0].Shape.D[1]-1), -1, in[0].Shape.At(-1)))
			targets := f.Let("targets", f.Reshape(f.Slice(in[1], 1, 1, in[1].Shape.D[1]), -1))
			return one(f.CrossEntropy(logits, targets))
		}, whole, batch.Tensor(Labels))[0]
	}
	out.Others[last] = f.Own(f.Slice(whole, 1, 0, whole.Shape.D[1]-1))
	f.Forget(whole)
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		logits, targets := in[:last+1], f.Slice(in[last+1], 1, 1, in[last+1].Shape.D[1])
		sizes := make([]int64, len(logits))
		for i, t := range logits {
			sizes[i] = t.Shape.D[1]
		}
		var losses, rows, classes []*graph.Tensor
		for i, t := range logits {
			rows = append(rows, f.Let("logit_chunks["+strconv.Itoa(i)+"]", f.Reshape(t, -1, t.Shape.At(-1))))
		}
		for i, t := range f.SplitSizes(targets, 1, sizes...) {
			classes = append(classes, f.Let("target_chunks["+strconv.Itoa(i)+"]", f.Reshape(t, -1)))
		}
		for i := range rows {
			losses = append(losses, f.Let("loss_chunks["+strconv.Itoa(i)+"]", f.CrossEntropyEach(rows[i], classes[i])))
		}
		all := f.Cat(0, losses...)
		if b.Versions.LitGPT.Before(packageSince) {
			return one(f.Mean(all, false, 0))
		}
		return one(f.MulScalar(f.SumOver(all, 0, false)))
	}, append(append([]*graph.Tensor{}, out.Others...), batch.Tensor(Labels))...)[0]
}

// norm is norm_class.
func (g litgptConfig) norm(b Build) *graph.Module {
	if !g.rms {
		return layerNorm(b.DType, g.embd)
	}
	m := graph.NewModule("RMSNorm")
	weight := m.Param("weight", b.DType, g.embd)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x, given := in[0], in[0].DType
		scripts := b.Versions.LitGPT.Before(packageSince)
		if !scripts {
			x = f.Let("x", f.To(x, graph.F32))
		}
		mean := f.Let("norm_x", f.MeanLast(f.Mul(x, x)))
		normed := f.Let("x_normed", f.Mul(x, f.Rsqrt(f.AddScalar(mean))))
		if scripts {
			return one(f.Mul(weight.T(), normed))
		}
		w := weight.T()
		if g.unitOffset {
			w = f.Let("weight", f.AddScalar(w))
		}
		return one(f.To(f.Mul(normed, f.To(w, graph.F32)), given))
	}
	return m
}

// litgptBlock is Block: attention and MLP behind each other or side by side.
func litgptBlock(g litgptConfig, b Build, ctx *litgptRope) *graph.Module {
	m := graph.NewModule("Block")
	norm1 := m.Child("norm_1", g.norm(b))
	attention := m.Child("attn", litgptAttention(g, b, ctx))
	var norm2 *graph.Module
	if !g.sharedNorm {
		norm2 = m.Child("norm_2", g.norm(b))
	}
	mlp := m.Child("mlp", g.mlp(b))
	m.Beside = func() (args, bound []*graph.Tensor) { return []*graph.Tensor{ctx.cos, ctx.sin}, nil }
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		normed := f.Let("x_normed", f.Call1(norm1, x))
		attended := f.Let("attention_output", f.Call1(attention, normed))
		if !g.parallel {
			x = f.Let("x", f.Add(attended, x))
			return one(f.Add(f.Call1(mlp, f.Call1(norm2, x)), x))
		}
		if !g.sharedNorm {
			normed = f.Let("x_normed", f.Call1(norm2, x))
		}
		x = f.Let("x", f.Add(attended, x))
		return one(f.Add(f.Call1(mlp, normed), x))
	}
	return m
}

// litgptAttention is CausalSelfAttention: one product for queries, keys and
// values.
func litgptAttention(g litgptConfig, b Build, ctx *litgptRope) *graph.Module {
	m := graph.NewModule("CausalSelfAttention")
	split := b.Versions.LitGPT.AtLeast(splitHeadsSince)
	name := "attn"
	if split {
		name = "qkv"
	}
	qkv := m.Child(name, linear(b.DType, g.embd, (g.heads+2*g.groups)*g.headSize, g.bias))
	proj := m.Child("proj", linear(b.DType, g.heads*g.headSize, g.embd, g.bias))
	heads := g.interleavedHeads
	if split {
		heads = g.splitHeads
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		q, k, v := heads(f, f.Let("qkv", f.Call1(qkv, in[0])))
		turnedQ := f.Let("q_roped", f.Func(litgptTurn, f.Slice(q, -1, 0, g.ropeColumns), ctx.cos, ctx.sin)[0])
		turnedK := f.Let("k_roped", f.Func(litgptTurn, f.Slice(k, -1, 0, g.ropeColumns), ctx.cos, ctx.sin)[0])
		q = f.Let("q", f.Cat(-1, turnedQ, f.Slice(q, -1, g.ropeColumns, g.headSize)))
		k = f.Let("k", f.Cat(-1, turnedK, f.Slice(k, -1, g.ropeColumns, g.headSize)))
		if split && g.groups != g.heads {
			k = f.Let("k", repeatKV(f, k, g.heads/g.groups))
			v = f.Let("v", repeatKV(f, v, g.heads/g.groups))
		}
		y := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			y := f.ScaledDotProductAttention(in[0], in[1], in[2], nil, graph.Attention{Causal: true, Backend: b.Attention.Backend})
			return one(f.Transpose(y, 1, 2))
		}, q, k, v)[0]
		y = f.Let("y", f.Reshape(f.Let("y", y), batch, tokens, -1))
		return one(f.Call1(proj, y))
	}
	return m
}

// splitHeads cuts a product in three and each part into heads.
func (g litgptConfig) splitHeads(f *graph.Frame, qkv *graph.Tensor) (q, k, v *graph.Tensor) {
	batch, tokens := qkv.Shape.D[0], qkv.Shape.D[1]
	names := [3]string{"q", "k", "v"}
	counts := [3]int64{g.heads, g.groups, g.groups}
	parts := f.SplitSizes(qkv, -1, g.heads*g.headSize, g.groups*g.headSize, g.groups*g.headSize)
	for i, t := range parts {
		parts[i] = f.Let(names[i], t)
	}
	for i, t := range parts {
		parts[i] = f.Let(names[i], f.View(t, batch, tokens, counts[i], g.headSize))
	}
	for i, t := range parts {
		parts[i] = f.Let(names[i], f.Transpose(t, 1, 2))
	}
	return parts[0], parts[1], parts[2]
}

// interleavedHeads takes the heads of every group from where they lie beside
// each other.
func (g litgptConfig) interleavedHeads(f *graph.Frame, qkv *graph.Tensor) (q, k, v *graph.Tensor) {
	batch, tokens, each := qkv.Shape.D[0], qkv.Shape.D[1], g.heads/g.groups
	qkv = f.Let("qkv", f.View(qkv, batch, tokens, g.groups, each+2, g.headSize))
	qkv = f.Let("qkv", f.Permute(qkv, 0, 2, 3, 1, 4))
	names := [3]string{"q", "k", "v"}
	parts := f.SplitSizes(qkv, 2, each, 1, 1)
	for i, t := range parts {
		parts[i] = f.Let(names[i], t)
	}
	if g.groups != g.heads {
		for i := 1; i < 3; i++ {
			parts[i] = f.Let(names[i], f.Expand(parts[i], batch, g.groups, each, tokens, g.headSize))
		}
	}
	for i, t := range parts {
		parts[i] = f.Let(names[i], f.Reshape(t, batch, -1, tokens, g.headSize))
	}
	return parts[0], parts[1], parts[2]
}

// litgptTurn is apply_rope: computed in the table's type, and cast back.
func litgptTurn(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x, half := in[0], in[0].Shape.At(-1)/2
	x1 := f.Let("x1", f.Slice(x, -1, 0, half))
	x2 := f.Let("x2", f.Slice(x, -1, half, 2*half))
	rotated := f.Let("rotated", f.Cat(-1, f.Neg(x2), x1))
	roped := f.Let("roped", f.Add(f.Mul(x, in[1]), f.Mul(rotated, in[2])))
	return one(f.To(roped, x.DType))
}

// mlp is mlp_class: LLaMAMLP and GemmaMLP, gated, or GptNeoxMLP.
func (g litgptConfig) mlp(b Build) *graph.Module {
	act := activations[g.act]
	if !g.gated {
		m := graph.NewModule("GptNeoxMLP")
		up := m.Child("fc", linear(b.DType, g.embd, g.inner, g.bias))
		down := m.Child("proj", linear(b.DType, g.inner, g.embd, g.bias))
		m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			x := f.Let("x", f.Call1(up, in[0]))
			x = f.Let("x", act(f, x))
			return one(f.Call1(down, x))
		}
		return m
	}
	m := graph.NewModule("LLaMAMLP")
	gate := m.Child("fc_1", linear(b.DType, g.embd, g.inner, g.bias))
	up := m.Child("fc_2", linear(b.DType, g.embd, g.inner, g.bias))
	down := m.Child("proj", linear(b.DType, g.inner, g.embd, g.bias))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x1 := f.Let("x_fc_1", f.Call1(gate, in[0]))
		x2 := f.Let("x_fc_2", f.Call1(up, in[0]))
		x := f.Let("x", f.Mul(act(f, x1), x2))
		return one(f.Call1(down, x))
	}
	return m
}
