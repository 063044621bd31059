package model

import (
	"iter"
	"slices"
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// decoderFamilies are the language models that predict the next token.
func decoderFamilies() []Family {
	return []Family{
		llamaFamily, mixtralFamily, gpt2Family, qwen3Family, qwen35Family, qwen2MoeFamily, qwen3MoeFamily, olmoeFamily, deepseekFamily, glm4MoeFamily, gptOssFamily,
		smollm3Family, cohere2Family, glmFamily, nemotronFamily, exaone4Family, graniteFamily, olmoFamily, olmo2Family, gemmaFamily, gemma2Family, gemma3Family,
		cohereFamily, stablelmFamily, phiFamily, phi3Family, starcoder2Family, gptNeoXFamily, optFamily, bloomFamily, gptBigCodeFamily, gptNeoFamily, gptJFamily, falconFamily,
	}
}

// llamaContext is what every layer of one forward pass shares: mask, position
// embeddings and cache, which Python passes as keyword arguments.
type llamaContext struct {
	decoderContext
	cos, sin *graph.Tensor
}

// keywordsSince is when checkpointed layers began to be called with keywords,
// bound into the function (transformers/modeling_layers.py).
var keywordsSince = spec.Version{4, 53}

// beside is what a layer is called with beside the hidden states. Cosines and
// sines are a tuple, which checkpointing does not look into.
func (c *llamaContext) beside(v spec.Versions) func() (args, bound []*graph.Tensor) {
	return func() (args, bound []*graph.Tensor) {
		args, bound = []*graph.Tensor{c.mask, c.positions}, []*graph.Tensor{c.cos, c.sin}
		if v.Transformers.AtLeast(keywordsSince) {
			return nil, append(bound, args...)
		}
		return args, bound
	}
}

// decoder is the model below the head in the families with rotary positions:
// embeddings, masks, the table of positions, the layers, a last norm. A family
// makes its children in its own order, which is that of loading.
type decoder struct {
	*graph.Module
	embedTokens, norm, rotary *graph.Module
	layers                    []*graph.Module
	ctx                       *llamaContext
	// local is the context of the layers that see only a window of tokens; nil
	// where there are none.
	local *llamaContext
	// ownTable says that those layers have a table of positions of their own.
	ownTable bool
	// window is the width of that window; without local it is that of every
	// layer, and 0 is none.
	window int64
	// mixed says that the layers are not all of a kind.
	mixed bool
	// unusedWindow says that a mask is made for layers with a window of nothing,
	// which are not there.
	unusedWindow bool
	// unplaced says that the masks are made without the position ids.
	unplaced bool
	// What is done to the embeddings: scaled at once, dropped after the masks
	// were made, scaledLate after the table of positions; nil is nothing.
	scaled, dropped, scaledLate func(f *graph.Frame, embeds *graph.Tensor) *graph.Tensor
	// compared is maskInputs.compared.
	compared bool
	// localMask makes the mask of the local layers in the family's own way; nil is
	// that of their window.
	localMask func(f *graph.Frame, in maskInputs) *graph.Tensor
	// ownMask makes one mask for all layers in the family's own way.
	ownMask func(f *graph.Frame, b Build, in maskInputs) *graph.Tensor
}

func newDecoder(class string) *decoder {
	return &decoder{Module: graph.NewModule(class), ctx: &llamaContext{}}
}

// stack makes the list of layers.
func (m *decoder) stack(name string, n int64, layer func(i int64) *graph.Module) {
	list := m.Child(name, graph.NewModule("ModuleList"))
	for i := range n {
		m.layers = append(m.layers, list.Child(strconv.FormatInt(i, 10), layer(i)))
	}
}

// causalLM puts the head on.
func (m *decoder) causalLM(class, name string, b Build, hidden, vocab int64, tied bool) *causalLM {
	m.Forward = m.forward(b)
	lm := newCausalLM(class, name, m.Module, m.embedTokens, &m.ctx.decoderContext, b, hidden, vocab, tied)
	lm.slices = b.Versions.Transformers.Before(spec.Version{5})
	return lm
}

// network is the built model.
func (m *decoder) network(lm *causalLM) *Network {
	lm.Named("")
	return &Network{Root: lm.Module, Embeddings: m.embedTokens, Head: lm.head, Blocks: m.layers, Items: lm.items(), Forward: lm.run, Remember: m.remember}
}

// remember is Network.Remember.
func (m *decoder) remember() (restore func()) {
	ctx, local := *m.ctx, m.local
	var window llamaContext
	if local != nil {
		window = *local
	}
	return func() {
		*m.ctx = ctx
		if local != nil {
			*local = window
		}
	}
}

// forward takes input ids and an attention mask and returns the last hidden
// states.
func (m *decoder) forward(b Build) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	before5 := b.Versions.Transformers.Before(spec.Version{5})
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Call1(m.embedTokens, in[0]))
		if m.scaled != nil {
			embeds = f.Let("inputs_embeds", m.scaled(f, embeds))
		}
		positions := f.Let("position_ids", f.Arange(embeds.Shape.D[1]))
		if !before5 {
			positions = f.Let("position_ids", f.AddScalar(positions))
		}
		positions = f.Let("position_ids", f.Unsqueeze(positions, 0))
		m.ctx.positions = positions
		m.masks(f, b, maskInputs{embeds: embeds, attention: in[1], positions: positions, padded: m.ctx.batch.Padded, cached: m.ctx.cache != nil})

		hidden := f.Let("hidden_states", embeds)
		if m.dropped != nil {
			hidden = f.Let("hidden_states", m.dropped(f, hidden))
		}
		m.rotate(f, hidden, positions)
		if m.scaledLate != nil {
			hidden = f.Let("hidden_states", m.scaledLate(f, hidden))
		}
		for layer := range m.run(f) {
			outputs := f.Call(layer, hidden)
			hidden = f.Let("hidden_states", outputs[0])
			if len(outputs) > 1 {
				f.Let("layer_outputs[1]", outputs[1])
			}
			if before5 || len(outputs) > 1 {
				f.Let("layer_outputs", hidden)
			}
		}
		hidden = f.Let("hidden_states", f.Call1(m.norm, hidden))
		return one(hidden)
	}
}

// run goes through the layers; where they are not all of a kind, through each
// of them.
func (m *decoder) run(f *graph.Frame) iter.Seq[*graph.Module] {
	if m.local != nil || m.mixed {
		return slices.Values(m.layers)
	}
	return f.Layers(m.layers)
}

// masks makes the mask of every kind of layer.
func (m *decoder) masks(f *graph.Frame, b Build, in maskInputs) {
	in.compared = m.compared
	if m.unplaced {
		in.positions = nil
	}
	switch {
	case m.ownMask != nil:
		m.ctx.mask = f.Let("causal_mask", m.ownMask(f, b, in))
		if m.local != nil {
			*m.local = *m.ctx
		}
	case m.local == nil:
		in.window = m.window
		m.ctx.slides = m.window > 0
		m.ctx.mask = f.Let("causal_mask", causalMask(f, b, in))
		if m.unusedWindow {
			in.window = 1
			f.Let("sliding_attention", causalMask(f, b, in))
		}
	default:
		m.ctx.mask = f.Let("causal_mask", causalMask(f, b, in))
		in.window = m.window
		*m.local = *m.ctx
		if m.localMask != nil {
			m.local.mask = f.Let("local_mask", m.localMask(f, in))
			return
		}
		m.local.slides = true
		m.local.mask = f.Let("sliding_mask", causalMask(f, b, in))
	}
}

// rotate makes the table of positions.
func (m *decoder) rotate(f *graph.Frame, hidden, positions *graph.Tensor) {
	if m.rotary == nil {
		return
	}
	table := f.Call(m.rotary, hidden, positions)
	m.ctx.cos, m.ctx.sin = f.Let("cos", table[0]), f.Let("sin", table[1])
	if m.local == nil {
		return
	}
	m.local.cos, m.local.sin = m.ctx.cos, m.ctx.sin
	if m.ownTable {
		table = f.Call(m.rotary, hidden, positions)
		m.local.cos, m.local.sin = f.Let("sliding_cos", table[0]), f.Let("sliding_sin", table[1])
	}
}
