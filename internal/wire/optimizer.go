package wire

import (
	"fmt"
	"strconv"

	"memplan/internal/estimator/spec"
)

// optim is what a Hugging Face optimizer name stands for.
type optim struct {
	name, implementation, library, bits string
	paged                               bool
	inBackward                          bool
}

// optims are the values of transformers' `optim` that say more than a name
// (training_args.OptimizerNames).
var optims = map[string]optim{
	"adamw_torch":                 {name: "adamw", implementation: "foreach", library: "torch"},
	"adamw_torch_fused":           {name: "adamw", implementation: "fused", library: "torch"},
	"adamw_hf":                    {name: "adamw", implementation: "for-loop", library: "transformers"},
	"adamw_apex_fused":            {name: "adamw", implementation: "fused", library: "apex"},
	"adamw_torch_8bit":            {name: "adamw", library: "torchao", bits: "8"},
	"adamw_torch_4bit":            {name: "adamw", library: "torchao", bits: "4"},
	"adamw_bnb_8bit":              {name: "adamw", library: "bitsandbytes", bits: "8"},
	"adamw_8bit":                  {name: "adamw", library: "bitsandbytes", bits: "8"},
	"paged_adamw":                 {name: "adamw", library: "bitsandbytes", bits: "32", paged: true},
	"paged_adamw_32bit":           {name: "adamw", library: "bitsandbytes", bits: "32", paged: true},
	"paged_adamw_8bit":            {name: "adamw", library: "bitsandbytes", bits: "8", paged: true},
	"lion_32bit":                  {name: "lion", library: "bitsandbytes", bits: "32"},
	"lion_8bit":                   {name: "lion", library: "bitsandbytes", bits: "8"},
	"paged_lion_32bit":            {name: "lion", library: "bitsandbytes", bits: "32", paged: true},
	"paged_lion_8bit":             {name: "lion", library: "bitsandbytes", bits: "8", paged: true},
	"ademamix_8bit":               {name: "ademamix", library: "bitsandbytes", bits: "8"},
	"paged_ademamix_32bit":        {name: "ademamix", library: "bitsandbytes", bits: "32", paged: true},
	"paged_ademamix_8bit":         {name: "ademamix", library: "bitsandbytes", bits: "8", paged: true},
	"rmsprop_bnb":                 {name: "rmsprop", library: "bitsandbytes", bits: "32"},
	"rmsprop_bnb_32bit":           {name: "rmsprop", library: "bitsandbytes", bits: "32"},
	"rmsprop_bnb_8bit":            {name: "rmsprop", library: "bitsandbytes", bits: "8"},
	"schedule_free_adamw":         {name: "adamw", library: "schedulefree"},
	"schedule_free_sgd":           {name: "sgd", library: "schedulefree"},
	"galore_adamw_8bit":           {name: "galore_adamw", library: "bitsandbytes", bits: "8"},
	"galore_adamw_layerwise":      {name: "galore_adamw", inBackward: true},
	"galore_adamw_8bit_layerwise": {name: "galore_adamw", library: "bitsandbytes", bits: "8", inBackward: true},
	"galore_adafactor_layerwise":  {name: "galore_adafactor", inBackward: true},
	"apollo_adamw_layerwise":      {name: "apollo_adamw", inBackward: true},
}

// HuggingFaceOptimizers lists the values of transformers' `optim` that stand for
// more than a name, by that value.
func HuggingFaceOptimizers() map[string]spec.Optimizer {
	all := make(map[string]spec.Optimizer, len(optims))
	for name, o := range optims {
		bits, _ := strconv.Atoi(o.bits)
		all[name] = spec.Optimizer{
			Name: o.name, Implementation: o.implementation, Library: o.library, StateBits: bits,
			Paged: o.paged, InBackward: o.inBackward,
		}
	}
	return all
}

// settings are the keys of the format's optimizer that the name stands for.
func (o optim) settings() []member {
	out := []member{{key: "name", value: &node{kind: text, text: o.name}}}
	for _, s := range []struct{ key, value string }{{"implementation", o.implementation}, {"library", o.library}} {
		if s.value != "" {
			out = append(out, member{key: s.key, value: &node{kind: text, text: s.value}})
		}
	}
	if o.bits != "" {
		out = append(out, member{key: "state_bits", value: &node{kind: number, text: o.bits}})
	}
	if o.paged {
		out = append(out, member{key: "paged", value: &node{kind: boolean, text: "true"}})
	}
	if o.inBackward {
		out = append(out, member{key: "in_backward", value: &node{kind: boolean, text: "true"}})
	}
	return out
}

// expandOptimizer replaces a Hugging Face name, alone or as the name in an
// object, by what it stands for. It fails where the object says otherwise.
func expandOptimizer(n *node) error {
	name := n
	if n.kind == object {
		name = n.get("name")
	}
	if name == nil || name.kind != text {
		return nil
	}
	o, ok := optims[name.text]
	if !ok {
		return nil
	}
	settings := o.settings()
	if n.kind == text {
		n.kind, n.text, n.members = object, "", settings
		return nil
	}
	own := n.members
	for _, s := range settings[1:] {
		if there := n.get(s.key); there != nil && !sameText(there, s.value) {
			return fmt.Errorf("%s to be %s, as the name %s says, or the name %s", s.key, s.value.text, name.text, o.name)
		}
	}
	n.members = nil
	n.set("name", settings[0].value)
	for _, m := range append(own, settings[1:]...) {
		if m.key != "name" {
			n.set(m.key, m.value)
		}
	}
	return nil
}

// sameText compares scalars however their kind was written.
func sameText(a, b *node) bool { return a.text == b.text }
