package wire

import (
	"fmt"
	"strings"
)

// Synonym is a key of another tool that means one of ours. It may stand at the
// top level of a job or inside training, in any notation.
type Synonym struct {
	Key    string            // as the other tool writes it
	Path   string            // the key of the format it means
	Values map[string]string // what its values mean; nil: the same; "": nothing
	Method string            // the training.method it implies when none is given
	Help   string            // whose key it is
}

var onOff = func(on string) map[string]string { return map[string]string{"true": on, "false": ""} }

// Synonyms lists the keys of other tools that are understood.
func Synonyms() []Synonym {
	return []Synonym{
		{Key: "per_device_train_batch_size", Path: "training.micro_batch_size", Help: "transformers"},
		{Key: "train_micro_batch_size_per_gpu", Path: "training.micro_batch_size", Help: "DeepSpeed"},
		{Key: "batch_size", Path: "training.micro_batch_size", Help: "many"},
		{Key: "accumulate_grad_batches", Path: "training.gradient_accumulation_steps", Help: "Lightning"},
		{Key: "gradient_accumulation", Path: "training.gradient_accumulation_steps", Help: "many"},
		{Key: "max_seq_length", Path: "training.sequence_length", Help: "TRL, Unsloth"},
		{Key: "max_seq_len", Path: "training.sequence_length", Help: "torchtune"},
		{Key: "max_length", Path: "training.sequence_length", Help: "TRL"},
		{Key: "seq_len", Path: "training.sequence_length", Help: "torchtitan"},
		{Key: "seq_length", Path: "training.sequence_length", Help: "Megatron"},
		{
			Key: "gradient_checkpointing", Path: "training.activation_checkpointing", Help: "transformers",
			Values: map[string]string{"true": "full", "false": "none"},
		},
		{Key: "bf16", Path: "training.precision", Values: onOff("bf16-mixed"), Help: "transformers"},
		{Key: "fp16", Path: "training.precision", Values: onOff("fp16-mixed"), Help: "transformers"},
		{Key: "torch_dtype", Path: "training.weights_dtype", Help: "transformers"},
		{Key: "load_in_4bit", Path: "training.quantization", Values: onOff("nf4"), Help: "transformers; fp4 has the same size"},
		{Key: "load_in_8bit", Path: "training.quantization", Values: onOff("int8"), Help: "transformers"},
		{Key: "optim", Path: "training.optimizer", Help: "transformers"},
		{Key: "attn_implementation", Path: "training.attention", Help: "transformers"},
		{Key: "flash_attention_2", Path: "training.attention", Values: onOff("flash"), Help: "many"},
		{Key: "flash_attention", Path: "training.attention", Values: onOff("flash"), Help: "Axolotl"},
		{Key: "torch_compile", Path: "training.compile", Help: "transformers"},
		{Key: "lora_r", Path: "training.adapter.rank", Method: "lora", Help: "PEFT"},
		{Key: "lora_alpha", Path: "training.adapter.alpha", Method: "lora", Help: "PEFT"},
		{Key: "lora_dropout", Path: "training.adapter.dropout", Method: "lora", Help: "PEFT"},
		{Key: "lora_target_modules", Path: "training.adapter.target_modules", Method: "lora", Help: "PEFT"},
		{
			Key: "zero_stage", Path: "parallelism.sharding", Help: "DeepSpeed",
			Values: map[string]string{"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"},
		},
	}
}

// rename moves the synonyms of an object to the keys they mean, seen from the
// root of the job. prefix is where the object stands: "" or "training".
func (c *check) rename(root, at *node, prefix string, known map[string]*rule) {
	if at == nil || at.kind != object {
		return
	}
	own := at.members
	at.members = make([]member, 0, len(own)+1)
	for _, m := range own {
		if _, ours := known[m.key]; ours {
			at.members = append(at.members, m)
		}
	}
	for _, m := range own {
		if _, ours := known[m.key]; ours {
			continue
		}
		if s, ok := c.d.synonyms[m.key]; ok {
			c.translate(root, join(prefix, m.key), s, m.value)
			continue
		}
		at.members = append(at.members, m)
	}
}

// translate puts the value of a synonym where it belongs.
func (c *check) translate(root *node, path string, s Synonym, value *node) {
	if value.empty() {
		return
	}
	if s.Values != nil {
		meant, ok := s.Values[strings.ToLower(value.text)]
		if !ok || value.kind > text {
			c.wrong(path, value, s.values(), "")
			return
		}
		if meant == "" {
			return
		}
		value = &node{kind: text, text: meant, pos: value.pos}
	}
	value.from = path
	if s.Method != "" {
		c.implied = &node{kind: text, text: s.Method, pos: value.pos}
	}
	c.place(root, path, s.Path, value)
}

// values lists what a synonym takes, in words.
func (s Synonym) values() string {
	if _, ok := s.Values["true"]; ok {
		return "true or false"
	}
	return "0, 1, 2 or 3"
}

// method sets the training method that a synonym implied, unless one is given.
func (c *check) method(root *node) {
	if c.implied == nil {
		return
	}
	training := section(root, "training")
	if training.kind == object && training.get("method") == nil {
		training.set("method", c.implied)
	}
}

// section returns the object under a key, made when absent.
func section(n *node, key string) *node {
	if s := n.get(key); s != nil {
		return s
	}
	s := &node{kind: object}
	n.set(key, s)
	return s
}

// place sets the key at path to value. A different value that is already
// there makes both an error.
func (c *check) place(root *node, from, path string, value *node) {
	parent, r := root, c.d.root
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		parent = section(parent, key)
		if r = r.index[key]; parent.kind != object {
			return // its own fault is found when it is checked
		}
	}
	last := keys[len(keys)-1]
	there := parent.get(last)
	if there == nil {
		parent.set(last, value)
		return
	}
	r = r.index[last]
	if there.kind == object && value.kind <= text && r.short != "" && there.get(r.short) == nil {
		there.set(r.short, value)
		return
	}
	if !r.sameMeaning(there, value) {
		there, given := there.describe(), there.from
		if given == "" {
			given = path
		}
		c.wrong(from, value, fmt.Sprintf("the same as %s, which says %s, or only one of the two keys", given, there), "")
	}
}

// sameMeaning reports whether two ways of writing a value agree.
func (r *rule) sameMeaning(a, b *node) bool {
	a, b = r.normal(a), r.normal(b)
	if r.short == "" || a.kind == b.kind {
		return a.equal(b)
	}
	if a.kind != object {
		a, b = b, a
	}
	short := a.get(r.short)
	return short != nil && short.equal(b)
}

// normal is a copy of a value in the format's own spelling.
func (r *rule) normal(n *node) *node {
	copied := *n
	if r.respell(&copied) != nil {
		return n
	}
	return &copied
}
