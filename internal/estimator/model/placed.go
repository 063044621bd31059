package model

import "memplan/internal/estimator/graph"

// placedDecoder is the model below the head in GPT-2's relatives: tables of
// words and places, blocks, a last norm.
type placedDecoder struct {
	*graph.Module
	wte, wpe, drop, lnF *graph.Module
	blocks              []*graph.Module
	ctx                 *decoderContext
}

// newPlacedDecoder makes the modules in the order of the classes; block makes
// one block.
func newPlacedDecoder(class string, b Build, hidden, vocab, positions, layers int64, drop float64, ctx *decoderContext, block func(i int64) *graph.Module) *placedDecoder {
	m := &placedDecoder{Module: graph.NewModule(class), ctx: ctx}
	m.wte = m.Child("wte", embedding(b.DType, vocab, hidden))
	m.wpe = m.Child("wpe", embedding(b.DType, positions, hidden))
	m.drop = m.Child("drop", dropout(drop))
	list := decoder{Module: m.Module}
	list.stack("h", layers, block)
	m.blocks = list.layers
	m.lnF = m.Child("ln_f", layerNorm(b.DType, hidden))
	m.Forward = m.forward(b)
	return m
}

// forward takes input ids and an attention mask and returns the last hidden
// states. A block's second result, the attention's weights, lives as long as
// what the block returned.
func (m *placedDecoder) forward(b Build) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	before := b.Versions.Transformers.Before(maskingUtilsSince)
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		embeds := f.Let("inputs_embeds", f.Call1(m.wte, in[0]))
		positions := f.Let("position_ids", f.Arange(embeds.Shape.D[1]))
		if !before {
			positions = f.Let("position_ids", f.AddScalar(positions))
		}
		positions = f.Let("position_ids", f.Unsqueeze(positions, 0))
		m.ctx.cachePosition = nil
		if before {
			m.ctx.cachePosition = positions
		}
		m.ctx.mask = f.Let("causal_mask", causalMask(f, b, maskInputs{
			embeds: embeds, attention: in[1], positions: positions, padded: m.ctx.batch.Padded, cached: m.ctx.cache != nil,
		}))
		places := f.Let("position_embeds", f.Call1(m.wpe, positions))
		hidden := f.Let("hidden_states", f.Add(embeds, places))
		hidden = f.Let("hidden_states", f.Call1(m.drop, hidden))
		for block := range f.Layers(m.blocks) {
			outputs := f.Call(block, hidden)
			if len(outputs) > 1 {
				f.Let("outputs[1]", outputs[1])
			}
			if before || len(outputs) > 1 {
				f.Let("outputs[0]", outputs[0])
			}
			hidden = f.Let("hidden_states", outputs[0])
		}
		return one(f.Let("hidden_states", f.Call1(m.lnF, hidden)))
	}
}

// network puts the head on.
func (m *placedDecoder) network(class string, b Build, hidden, vocab int64, tied bool) (*Network, *causalLM) {
	lm := newCausalLM(class, "transformer", m.Module, m.wte, m.ctx, b, hidden, vocab, tied)
	lm.takesOwnLoss()
	lm.Named("")
	return &Network{Root: lm.Module, Embeddings: m.wte, Head: lm.head, Blocks: m.blocks, Items: lm.items(), Forward: lm.run}, lm
}

// placedBlock is a block of GPT-2's kind; weights says that it returns the
// attention's weights beside the hidden states.
func placedBlock(class string, b Build, ctx *decoderContext, hidden int64, attention, mlp *graph.Module, weights bool) *graph.Module {
	m := graph.NewModule(class)
	ln1 := m.Child("ln_1", layerNorm(b.DType, hidden))
	m.Child("attn", attention)
	ln2 := m.Child("ln_2", layerNorm(b.DType, hidden))
	m.Child("mlp", mlp)
	m.Beside = ctx.beside(b.Versions)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		residual := f.Let("residual", in[0])
		hidden := f.Let("hidden_states", f.Call1(ln1, in[0]))
		attended := f.Call(attention, hidden)
		output := f.Let("attn_output", attended[0])
		held := f.Let("attn_weights", attended[1])
		hidden = f.Let("hidden_states", f.Add(output, residual))

		residual = f.Let("residual", hidden)
		hidden = f.Let("hidden_states", f.Call1(ln2, hidden))
		forward := f.Let("feed_forward_hidden_states", f.Call1(mlp, hidden))
		hidden = f.Let("hidden_states", f.Add(residual, forward))
		if weights {
			return []*graph.Tensor{hidden, held}
		}
		return one(hidden)
	}
	return m
}

// droppedMLP is plainMLP with dropout behind it.
func droppedMLP(class string, d graph.DType, hidden, inner int64, act string, names [2]string, drop float64) *graph.Module {
	m := plainMLP(class, d, hidden, inner, act, true, names)
	last := m.Child("dropout", dropout(drop))
	plain := m.Forward
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Let("hidden_states", f.Call1(last, f.Let("hidden_states", plain(f, in...)[0]))))
	}
	return m
}
