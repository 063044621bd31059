// Package model holds the architectures, each as a program over package graph
// that reads like the PyTorch modules it stands for: one file a family, with
// its config reader, the model_type names it answers to, and its adapter
// defaults. A family uses only operations of graph; adapters, quantisation,
// checkpointing and sharding are put on its module tree from outside.
package model

import (
	"slices"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Family is an architecture: how to read its config and build its modules.
type Family struct {
	Name       string   // llama
	ModelTypes []string // config.json's model_type
	Classes    []string // config.json's _class_name, which diffusers has instead
	// Library and Architectures are where its models go by a name: timm or
	// torchvision.
	Library       string
	Architectures []string
	// Explicit is the family of model.architecture whose sizes it takes, and
	// Implementation the library that has it.
	Explicit, Implementation string
	Source                   string // the implementation it was written from
	// AdapterTargets are the modules an adapter sits on when none are named
	// (peft/utils/constants.py).
	AdapterTargets []string
	// New builds the network, or reports every config key that is missing or
	// wrong by its path under model.config.
	New func(c Config, b Build) (*Network, error)
}

// Families lists every architecture.
func Families() []Family {
	return slices.Concat(decoderFamilies(), encoderFamilies(), imageFamilies(), diffusionFamilies())
}

// Build is what the builder decides beside the config.
type Build struct {
	Versions  spec.Versions
	DType     graph.DType // of the weights
	Attention Attention
	UseCache  bool // the model fills a key-value cache in training
	// AsksCache says that it would, did checkpointing not turn the cache off.
	AsksCache bool
	// Checkpointed says that activations are recomputed, which drops the cache.
	Checkpointed bool
	// Objective is the job's: it decides the head where the config names none.
	Objective string
	// Image is the height and width of the job's images, 0 where it names none.
	Image [2]int64
	// Frames is how many the job's videos have, 0 where it does not say.
	Frames int64
	// Auxiliary says that a segmentor has its auxiliary head.
	Auxiliary bool
	// Classes is how many classes the job has, 0 where it does not say.
	Classes int64
	// Tokens is how many a sample has.
	Tokens int64
	// LossChunk is how many tokens the head is applied to at once, 0 for all.
	LossChunk int64
	// LinearAttention is how layers with a recurrent state are computed: fused
	// by kernels, or fallback, by operations of torch; "" does not say.
	LinearAttention string
	// Patches are functions another library put in the place of the modeling
	// file's.
	Patches Patches
	// Ranks is how Megatron's models are spread.
	Ranks Ranks
}

// Patches are the Python functions that kernel libraries replace; nil is the
// modeling file's own.
type Patches struct {
	// Rotary is apply_rotary_pos_emb: queries, keys, cosines and sines in,
	// queries and keys out.
	Rotary func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor
	// CrossEntropy is torch.nn.functional.cross_entropy.
	CrossEntropy func(f *graph.Frame, logits, target *graph.Tensor) *graph.Tensor
	// LinearCrossEntropy is the head and its loss, of hidden states of shape
	// [tokens, hidden] and the head's weight: no logits are made.
	LinearCrossEntropy func(f *graph.Frame, hidden, weight, target *graph.Tensor) *graph.Tensor
	// Scored says that a causal language model gives the log-probabilities of
	// its labels, and what else is asked for of them, and no logits, as TRL's
	// trainers make it; nil does not.
	Scored *graph.TokenScores
}

// Attention is the kernel the model's attention runs.
type Attention struct {
	Kernel  string // eager, sdpa, flash
	Backend string // of sdpa, when forced: flash, efficient, math, cudnn
}

// Network is a built model.
type Network struct {
	Root *graph.Module
	// Blocks are the repeated layers, the unit of checkpointing and sharding.
	Blocks []*graph.Module
	// Uncheckpointed says that switching checkpointing on has no effect on them.
	Uncheckpointed bool
	// Inputs are the tensors of a batch, in the order they are moved to the
	// card; nil is TokenInputs.
	Inputs func(s Sizes) []Input
	// LossApart says that the script computes the loss from the model's result,
	// so that the outputs do not hold it.
	LossApart bool
	// Forward runs the model with its loss, or without it where there is a
	// Criterion.
	Forward func(f *graph.Frame, b Batch) Outputs
	// Criterion is the script's loss of the model's outputs, which it may cut to
	// size; nil where Forward takes the loss.
	Criterion func(f *graph.Frame, b Batch, out *Outputs) *graph.Tensor
	// Remember notes what blocks read of the forward that runs (masks, positions)
	// and returns what puts it back, for a forward in between. nil where blocks
	// read nothing.
	Remember func() (restore func())
	// Items says how a Trainer counts the items of a batch for the loss.
	Items Items
	// Head is the output layer of a language model, nil where there is none
	// (get_output_embeddings).
	Head *graph.Module
	// Heads is how attention is divided, where adapters must know it.
	Heads Heads
	// Embeddings is the input embedding: what enable_input_require_grads hooks.
	Embeddings *graph.Module
	// Mixture says how tokens go to experts; nil where there are none.
	Mixture *Mixture
	// Unruled lists the operations that no rule is known for, for a batch; nil
	// where there are none.
	Unruled func(batch int64) []Unruled
	// AssumedLoss is the loss put on the result of a graph that names none.
	AssumedLoss string
	// Recurrent says that layers have a recurrent state, computed by operations
	// of torch.
	Recurrent bool
	// MoreEmbeddings are further modules that look up input ids.
	MoreEmbeddings []*graph.Module
	// Stage is the network where it is one rank's part of a pipeline, and
	// Forward is nil; nil where it is whole.
	Stage *Stage
}

// Stage is a part of a model that a pipeline's schedule runs.
type Stage struct {
	// Receive says what the stage before sent; the caller holds it.
	Receive func(hidden *graph.Tensor)
	// Run runs the part: hidden states, or on the last stage a loss for each
	// token.
	Run func(f *graph.Frame, tokens, positions, mask, labels *graph.Tensor) *graph.Tensor
	// From and To are its first layer and the one after its last; Hidden is the
	// width of what is sent.
	From, To, Hidden int64
	// Shared says that the first and the last stage have a copy each of the
	// embedding's weight.
	Shared bool
}

// Heads are those of an attention whose queries, keys and values come from one
// layer: heads of queries, heads of keys and of values, and their width.
type Heads struct{ Queries, Groups, Width int64 }

// Mixture is the mixtures of experts in a network.
type Mixture struct {
	Experts, Chosen int64 // of a layer, and of them those that a token visits
	// Idle is how many parameters a token does not pass: those of the experts it
	// does not visit.
	Idle int64
	// Looped says that the experts run one after the other, each on the rows that
	// chose it, so that sizes depend on how many those are.
	Looped bool
}

// Outputs is what the model returns: whoever holds it keeps these alive.
type Outputs struct {
	Loss, Logits *graph.Tensor
	// Others are the output's further tensors, in the order of its fields.
	Others []*graph.Tensor
	Cache  []*graph.Tensor
}

// Release lets the outputs go.
func (o *Outputs) Release(f *graph.Frame) {
	for _, t := range slices.Concat([]*graph.Tensor{o.Loss, o.Logits}, o.Others, o.Cache) {
		if t != nil {
			f.Forget(t)
		}
	}
	*o = Outputs{}
}

// Of returns the family of a config by its model_type, or by its _class_name
// where it has that instead, or an error that names the nearest.
func Of(config map[string]any) (*Family, error) {
	key, names := "model_type", func(f *Family) []string { return f.ModelTypes }
	if _, ok := config["_class_name"].(string); ok {
		key, names = "_class_name", func(f *Family) []string { return f.Classes }
	}
	kind, _ := config[key].(string)
	families := Families()
	var known []string
	for i := range families {
		if slices.Contains(names(&families[i]), kind) {
			return &families[i], nil
		}
		known = append(known, names(&families[i])...)
	}
	var fields fault.Fields
	near := kin(kind, known)
	at := slices.IndexFunc(families, func(f Family) bool { return slices.Contains(names(&f), near) })
	fields.Add("model.config."+key, kind, "one of "+join(known)+"; nothing else is taken in its place unasked: with "+near+
		" there, the answer would assume the layers of "+families[at].Source+" with this config's sizes", near)
	return nil, fields
}

// kin is the known name that begins most like the one given, as the next model
// of a house does; among several, or where none does, the one spelt most alike.
func kin(name string, known []string) string {
	most, alike := 2, known
	for _, k := range known {
		n := 0
		for n < min(len(name), len(k)) && name[n] == k[n] {
			n++
		}
		switch {
		case n > most:
			most, alike = n, []string{k}
		case n == most && most > 2:
			alike = append(alike, k)
		}
	}
	return nearest(name, alike)
}
