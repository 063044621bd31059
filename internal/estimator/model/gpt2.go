package model

import (
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// gpt2Family is GPT-2 and what is published under its class: DistilGPT-2,
// DialoGPT. Written from transformers 5.24 and 4.49,
// models/gpt2/modeling_gpt2.py.
var gpt2Family = Family{
	Name:           "gpt2",
	ModelTypes:     []string{"gpt2"},
	Source:         "huggingface/transformers:src/transformers/models/gpt2/modeling_gpt2.py@v5.24.0, v4.49.0",
	AdapterTargets: []string{"c_attn"},
	New:            newGPT2,
}

// gpt2Config is what the program needs of a config.json.
type gpt2Config struct {
	hidden, inner, layers, heads, positions, vocab int64
	tied                                           bool
	act                                            string
	residual, embedding, attention                 float64 // dropout
}

func readGPT2(c *Config) gpt2Config {
	g := gpt2Config{
		hidden: c.Int("n_embd", "hidden_size"), layers: c.Int("n_layer", "num_hidden_layers"), heads: c.Int("n_head", "num_attention_heads"),
		positions: c.IntOr(1024, "n_positions", "max_position_embeddings"), vocab: c.Int("vocab_size"),
		tied: c.Bool(true, "tie_word_embeddings"), act: c.Activation("gelu_new", "activation_function"),
		residual: c.Float(0.1, "resid_pdrop"), embedding: c.Float(0.1, "embd_pdrop"), attention: c.Float(0.1, "attn_pdrop"),
	}
	g.inner = c.IntOr(4*g.hidden, "n_inner")
	c.Divides("n_head", "n_embd", g.heads, g.hidden)
	for _, key := range []string{"reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "add_cross_attention"} {
		if c.Bool(false, key) {
			c.fields.Add("model.config."+key, true, "false", "false")
		}
	}
	return g
}

func newGPT2(c Config, b Build) (*Network, error) {
	g := readGPT2(&c)
	if err := c.Err(); err != nil {
		return nil, err
	}
	base := newGPT2Model(g, b)
	lm := newCausalLM("GPT2LMHeadModel", "transformer", base.Module, base.wte, &base.ctx.decoderContext, b, g.hidden, g.vocab, g.tied)
	lm.takesOwnLoss()
	lm.Named("")
	return &Network{Root: lm.Module, Embeddings: base.wte, Head: lm.head, Blocks: base.blocks, Items: lm.items(), Forward: lm.run, Remember: func() func() {
		ctx := *base.ctx
		return func() { *base.ctx = ctx }
	}}, nil
}

// conv1D is transformers' Conv1D: a linear layer whose weight is stored
// transposed.
func conv1D(d graph.DType, out, in int64) *graph.Module {
	m := graph.NewModule("Conv1D")
	weight := m.Param("weight", d, in, out)
	bias := m.Param("bias", d, out)
	m.Forward = func(f *graph.Frame, x ...*graph.Tensor) []*graph.Tensor {
		size := x[0].Shape.With(-1, out)
		y := f.Let("x", f.Addmm(bias.T(), f.View(x[0], -1, in), weight.T()))
		return one(f.View(y, size.Slice()...))
	}
	return m
}

// gpt2Context is what every block of one forward pass shares.
type gpt2Context struct{ decoderContext }

// beside is what a block is called with beside the hidden states: the mask by
// position, and later the position ids by keyword.
func (c *gpt2Context) beside(v spec.Versions) func() (args, bound []*graph.Tensor) {
	return func() (args, bound []*graph.Tensor) {
		if v.Transformers.Before(keywordsSince) {
			return []*graph.Tensor{c.mask}, nil
		}
		return []*graph.Tensor{c.mask}, []*graph.Tensor{c.positions}
	}
}

// gpt2Attention is multi-head attention over one product for queries, keys and
// values. Its second result is what the block holds while it runs.
func gpt2Attention(g gpt2Config, b Build, ctx *gpt2Context) *graph.Module {
	m := graph.NewModule("GPT2Attention")
	bias := causalBuffer(m, g, b)
	cAttn := m.Child("c_attn", conv1D(b.DType, 3*g.hidden, g.hidden))
	cProj := m.Child("c_proj", conv1D(b.DType, g.hidden, g.hidden))
	m.Child("attn_dropout", dropout(g.attention))
	drop := m.Child("resid_dropout", dropout(g.residual))
	shape := attentionShape{groups: 1, dropout: g.attention}
	shape.eager = gpt2EagerAttention(g, b, bias)
	if b.Versions.Transformers.AtLeast(maskingUtilsSince) {
		shape.positions = func() *graph.Tensor { return ctx.positions }
	}
	attend := attentionInterface(b, shape)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, tokens := in[0].Shape.D[0], in[0].Shape.D[1]
		heads := func(t *graph.Tensor) *graph.Tensor {
			return f.Transpose(f.View(t, batch, tokens, -1, g.hidden/g.heads), 1, 2)
		}
		parts := f.Split(f.Call1(cAttn, in[0]), 3, 2)
		query, key, value := f.Let("query_states", parts[0]), f.Let("key_states", parts[1]), f.Let("value_states", parts[2])
		key, value = f.Let("key_states", heads(key)), f.Let("value_states", heads(value))
		query = f.Let("query_states", heads(query))
		key, value = ctx.cache.update(f, "key_states", "value_states", key, value)
		result := attend(f, query, key, value, ctx.mask)
		output := f.Let("attn_output", result[0])
		weights := result[1]
		if weights != nil {
			weights = f.Let("attn_weights", weights)
		}
		output = f.Let("attn_output", f.Contiguous(f.Reshape(output, batch, tokens, -1)))
		output = f.Let("attn_output", f.Call1(cProj, output))
		output = f.Let("attn_output", f.Call1(drop, output))
		if b.Versions.Transformers.Before(maskingUtilsSince) {
			weights = nil // returned only when asked for
		}
		return []*graph.Tensor{output, weights}
	}
	return m
}

// causalBuffer is the triangle of booleans that every attention module kept
// before masks were built for all of them.
func causalBuffer(m *graph.Module, g gpt2Config, b Build) *graph.Param {
	if b.Versions.Transformers.AtLeast(maskingUtilsSince) {
		return nil
	}
	bias := m.Buffer("bias", graph.Bool, 1, 1, g.positions, g.positions)
	m.Buffer("masked_bias", b.DType)
	return bias
}

// gpt2EagerAttention is GPT-2's eager_attention_forward: softmax in the type of
// the scores. Before there was one mask for all layers it masked the future
// itself.
func gpt2EagerAttention(g gpt2Config, b Build, bias *graph.Param) attentionFunc {
	return func(f *graph.Frame, query, key, value, mask *graph.Tensor) []*graph.Tensor {
		scores := f.Matmul(query, f.Transpose(key, -1, -2))
		if bias == nil {
			scores = f.Let("attn_weights", f.MulScalar(scores))
		} else {
			scores = f.Let("attn_weights", scores)
			scores = f.Let("attn_weights", f.DivTensor(scores, f.Empty(scores.DType)))
			rows, columns := query.Shape.At(-2), key.Shape.At(-2)
			triangle := f.Let("causal_mask", f.Slice(f.Slice(bias.T(), 2, 0, rows), 3, 0, columns))
			least := f.Let("mask_value", f.Empty(scores.DType))
			scores = f.Let("attn_weights", f.Where(triangle, scores, least))
		}
		if mask != nil {
			scores = f.Let("attn_weights", f.Add(scores, mask))
		}
		scores = f.Let("attn_weights", f.Softmax(scores, scores.DType))
		scores = f.Let("attn_weights", f.To(scores, value.DType))
		scores = f.Let("attn_weights", f.Dropout(scores, g.attention))
		output := f.Let("attn_output", f.Matmul(scores, value))
		output = f.Let("attn_output", f.Transpose(output, 1, 2))
		return []*graph.Tensor{output, scores}
	}
}

// gpt2MLP is the feed-forward part.
func gpt2MLP(g gpt2Config, d graph.DType) *graph.Module {
	m := graph.NewModule("GPT2MLP")
	cFc := m.Child("c_fc", conv1D(d, g.inner, g.hidden))
	cProj := m.Child("c_proj", conv1D(d, g.hidden, g.inner))
	act := m.Child("act", activation(g.act))
	drop := m.Child("dropout", dropout(g.residual))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		hidden := f.Let("hidden_states", f.Call1(cFc, in[0]))
		hidden = f.Let("hidden_states", f.Call1(act, hidden))
		hidden = f.Let("hidden_states", f.Call1(cProj, hidden))
		return one(f.Let("hidden_states", f.Call1(drop, hidden)))
	}
	return m
}

// gpt2Block is one block.
func gpt2Block(g gpt2Config, b Build, ctx *gpt2Context) *graph.Module {
	m := graph.NewModule("GPT2Block")
	ln1 := m.Child("ln_1", layerNorm(b.DType, g.hidden))
	attn := m.Child("attn", gpt2Attention(g, b, ctx))
	ln2 := m.Child("ln_2", layerNorm(b.DType, g.hidden))
	mlp := m.Child("mlp", gpt2MLP(g, b.DType))
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(ln1, in[0]))
		attended := f.Call(attn, hidden)
		output := f.Let("attn_output", attended[0])
		f.Let("_", attended[1])
		hidden = f.Let("hidden_states", f.Add(output, residual))

		residual = f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(ln2, hidden))
		forward := f.Let("feed_forward_hidden_states", f.Call1(mlp, hidden))
		return one(f.Let("hidden_states", f.Add(residual, forward)))
	}
	return m
}

type gpt2Model struct {
	*graph.Module
	wte, wpe, drop, lnF *graph.Module
	blocks              []*graph.Module
	ctx                 *gpt2Context
	versions            spec.Versions
}

func newGPT2Model(g gpt2Config, b Build) *gpt2Model {
	m := &gpt2Model{Module: graph.NewModule("GPT2Model"), ctx: &gpt2Context{}, versions: b.Versions}
	m.wte = m.Child("wte", embedding(b.DType, g.vocab, g.hidden))
	m.wpe = m.Child("wpe", embedding(b.DType, g.positions, g.hidden))
	m.drop = m.Child("drop", dropout(g.embedding))
	list := m.Child("h", graph.NewModule("ModuleList"))
	for i := range g.layers {
		m.blocks = append(m.blocks, list.Child(strconv.FormatInt(i, 10), gpt2Block(g, b, m.ctx)))
	}
	m.lnF = m.Child("ln_f", layerNorm(b.DType, g.hidden))
	m.Forward = m.forward(b)
	return m
}

// forward takes input ids and an attention mask and returns the last hidden
// states.
func (m *gpt2Model) forward(b Build) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds, positions := m.embed(f, in[0])
		m.ctx.positions = positions
		places := f.Let("position_embeds", f.Call1(m.wpe, positions))
		hidden := f.Let("hidden_states", f.Add(embeds, places))
		inputs := maskInputs{embeds: embeds, attention: in[1], positions: positions, padded: m.ctx.batch.Padded, cached: m.ctx.cache != nil}
		m.ctx.mask = m.mask(f, b, inputs)
		hidden = f.Let("hidden_states", f.Call1(m.drop, hidden))
		for block := range f.Layers(m.blocks) {
			hidden = f.Let("hidden_states", f.Call1(block, hidden))
			if m.before5() {
				f.Let("outputs", hidden)
			}
		}
		hidden = f.Let("hidden_states", f.Call1(m.lnF, hidden))
		return one(hidden)
	}
}

func (m *gpt2Model) before5() bool { return m.versions.Transformers.Before(maskingUtilsSince) }

// embed looks the tokens up and numbers them; the order of the two changed.
func (m *gpt2Model) embed(f *graph.Frame, tokens *graph.Tensor) (embeds, positions *graph.Tensor) {
	n := tokens.Shape.D[1]
	if m.before5() {
		positions = f.Let("position_ids", f.Unsqueeze(f.Arange(n), 0))
		return f.Let("inputs_embeds", f.Call1(m.wte, tokens)), positions
	}
	embeds = f.Let("inputs_embeds", f.Call1(m.wte, tokens))
	return embeds, f.Let("position_ids", f.Unsqueeze(f.AddScalar(f.Arange(n)), 0))
}

// mask is the attention mask of the blocks, under its name of the version.
func (m *gpt2Model) mask(f *graph.Frame, b Build, in maskInputs) *graph.Tensor {
	switch {
	case !m.before5():
		return f.Let("causal_mask", createCausalMask(f, b, in))
	case b.Attention.Kernel == "sdpa":
		return f.Let("attention_mask", converted4D(f, in))
	case b.Attention.Kernel == "flash" || in.attention == nil:
		return nil
	}
	batch, tokens := in.sizes()
	mask := f.Let("attention_mask", f.View(in.attention, batch, 1, 1, tokens))
	mask = f.Let("attention_mask", f.To(mask, b.DType))
	return f.Let("attention_mask", f.MulScalar(f.AddScalar(mask)))
}
