package web

import (
	"fmt"
	"slices"
	"strings"

	"memplan/internal/catalog"
	"memplan/internal/units"
)

// suggestions is how many models a list of suggestions holds.
const suggestions = 200

// form is the layout of the planner's inputs, made once: which fields stand
// where. What a field is comes from wire.
type form struct {
	First  []control // the five that most people need
	Groups []section // folded away
	Models []catalog.Model
}

// section is one fieldset.
type section struct {
	Legend   string
	Hint     string
	Controls []control
}

// control is one input.
type control struct {
	Path    string // of the public format
	Name    string // in the URL
	ID      string // of the element
	Label   string
	Help    string
	Kind    kind
	Suffix  string   // behind the input
	Options []option // of a select
	Default string
	Example string // of a value, where there is no default
	Min     string // of a number
	Step    string // of a number
	Only    string // shown for this training method only
	// Unmodelled says that the engine has no rules for any value but the default.
	Unmodelled bool
}

// kind is how a control is drawn.
type kind uint8

const (
	textInput kind = iota
	numberInput
	selectInput
	modelInput
	longInput
)

// option is a choice, under a heading where there are many.
type option struct {
	Value, Text, Group string
	Unmodelled         bool // the engine refuses it
}

// notYet stands beside what the format can say and the engine cannot answer.
const notYet = "not modelled yet"

// text is what the form shows of a choice.
func (o option) text() string {
	if o.Unmodelled {
		return o.Text + " (" + notYet + ")"
	}
	return o.Text
}

// placed is where a field stands and what it is called there.
type placed struct {
	path, label, suffix, only string
}

var firstFields = []placed{
	{path: "model.id", label: "Model"},
	{path: "training.micro_batch_size", label: "Micro batch", suffix: "samples"},
	{path: "training.sequence_length", label: "Sequence length", suffix: "tokens"},
	{path: "training.precision", label: "Precision"},
	{path: "training.method", label: "Method"},
	{path: "target.gpu", label: "GPU"},
}

var folded = []struct {
	legend, hint string
	fields       []placed
}{
	{"Model, in other words", "In the place of an id: exactly one of them.", []placed{
		{path: "model.config", label: "config.json, pasted"},
		{path: "model.architecture", label: "Sizes, as JSON"},
	}},
	{"Method and adapter", "", []placed{
		{path: "training.weights_dtype", label: "Weights stored in"},
		{path: "training.quantization", label: "Frozen base quantised to"},
		{path: "training.adapter.rank", label: "Adapter rank", only: "adapter"},
		{path: "training.adapter.alpha", label: "Adapter alpha", only: "adapter"},
		{path: "training.adapter.target_modules", label: "Adapter on modules", only: "adapter"},
		{path: "training.adapter.dropout", label: "Adapter dropout", only: "adapter"},
		{path: "training.adapter.dtype", label: "Adapter stored in", only: "adapter"},
	}},
	{"Optimizer", "", []placed{
		{path: "training.optimizer", label: "Optimizer"},
		{path: "training.optimizer.implementation", label: "Implementation"},
		{path: "training.optimizer.library", label: "Library"},
		{path: "training.optimizer.state_bits", label: "State bits"},
		{path: "training.optimizer.paged", label: "Paged state"},
		{path: "training.optimizer.momentum", label: "Momentum"},
		{path: "training.master_weights", label: "Master weights"},
	}},
	{"Memory savers", "", []placed{
		{path: "training.activation_checkpointing", label: "Activation checkpointing"},
		{path: "training.activation_checkpointing.every", label: "Checkpoint every", suffix: "layers"},
		{path: "training.activation_checkpointing.reentrant", label: "Reentrant checkpoints"},
		{path: "training.attention", label: "Attention"},
		{path: "training.gradient_accumulation_steps", label: "Accumulation", suffix: "steps"},
		{path: "training.gradient_clipping", label: "Gradient clipping"},
		{path: "training.zero_grad_set_to_none", label: "Gradients set to none"},
		{path: "training.zero_grad_position", label: "Gradients cleared"},
		{path: "training.loss", label: "Loss"},
		{path: "runtime.allocator.expandable_segments", label: "Expandable segments"},
	}},
	{"Batch", "", []placed{
		{path: "training.padding", label: "Padding"},
		{path: "training.packing", label: "Packing"},
		{path: "training.objective", label: "Objective"},
	}},
	{"Versions", "None given means the newest known.", []placed{
		{path: "runtime.trainer", label: "Trainer"},
		{path: "runtime.holds_outputs", label: "Loop holds outputs"},
		{path: "runtime.framework_version", label: "PyTorch"},
		{path: "runtime.library_versions.transformers", label: "transformers"},
		{path: "runtime.library_versions.peft", label: "peft"},
		{path: "runtime.library_versions.accelerate", label: "accelerate"},
		{path: "runtime.library_versions.bitsandbytes", label: "bitsandbytes"},
	}},
	{"Target", "", []placed{
		{path: "target.count", label: "Cards"},
		{path: "parallelism.sharding", label: "Sharding"},
		{path: "target.headroom_gib", label: "Leave free", suffix: "GiB"},
		{path: "target.other_processes_gib", label: "Held by other processes", suffix: "GiB"},
		{path: "target.memory_gib", label: "Memory of an unlisted card", suffix: "GiB"},
	}},
}

// rest names the sections of the fields that no group above holds, by the
// first word of their path.
var rest = []struct{ root, legend string }{
	{"model", "More of the model"},
	{"training", "More of training"},
	{"parallelism", "Parallelism"},
	{"runtime", "More of the software"},
	{"target", "More of the target"},
}

// newForm lays the fields out. A field of the layout that wire does not know
// is left out, so that the page never offers what cannot be said.
func newForm(gpus []catalog.GPU, models []catalog.Model) form {
	f := form{Models: models}
	seen := map[string]bool{}
	place := func(p placed) (control, bool) {
		c, ok := controlFor(p)
		if ok && p.path == "target.gpu" {
			c.Kind, c.Options = selectInput, gpuOptions(gpus)
		}
		seen[p.path] = true
		return c, ok
	}
	for _, p := range firstFields {
		if c, ok := place(p); ok {
			f.First = append(f.First, c)
		}
	}
	for _, g := range folded {
		s := section{Legend: g.legend, Hint: g.hint}
		for _, p := range g.fields {
			if c, ok := place(p); ok {
				s.Controls = append(s.Controls, c)
			}
		}
		f.Groups = append(f.Groups, s)
	}
	for _, r := range rest {
		f.Groups = append(f.Groups, remaining(r.root, r.legend, seen))
	}
	return f
}

// remaining is every field below a root that no group named.
func remaining(root, legend string, seen map[string]bool) section {
	s := section{Legend: legend}
	for _, path := range vocabulary().order {
		if seen[path] || !strings.HasPrefix(path, root+".") || path == "model.parameters" || repeats(path) {
			continue
		}
		if c, ok := controlFor(placed{path: path, label: sentenceCase(path)}); ok {
			s.Controls = append(s.Controls, c)
		}
	}
	return s
}

// repeats reports whether a field says in the long form what its parent says in
// the short one: training.attention.kernel, training.optimizer.name.
func repeats(path string) bool {
	cut := strings.LastIndex(path, ".")
	parent, ok := fieldAt(path[:cut])
	if !ok || !strings.Contains(parent.Type, "text") {
		return false
	}
	f, _ := fieldAt(path)
	return f.Path == "training.optimizer.name" || len(f.Enum) > 0 && slices.Equal(f.Enum, parent.Enum)
}

// controls is every input of the form.
func (f form) controls() []control {
	all := slices.Clone(f.First)
	for _, g := range f.Groups {
		all = append(all, g.Controls...)
	}
	return all
}

func gpuOptions(gpus []catalog.GPU) []option {
	var out []option
	for _, g := range gpus {
		out = append(out, option{Value: g.Key, Text: fmt.Sprintf("%s, %.1f GiB", g.Name, g.Usable.GiB()), Group: g.Arch})
	}
	slices.Reverse(out) // the table is oldest first
	slices.SortStableFunc(out, func(a, b option) int { return groupOrder(out, a.Group) - groupOrder(out, b.Group) })
	return out
}

// groupOrder is where a group first occurs, so that its options stand together.
func groupOrder(all []option, group string) int {
	return slices.IndexFunc(all, func(o option) bool { return o.Group == group })
}

// sentenceCase makes a label of a path: training.aux_logits is "Aux logits".
func sentenceCase(path string) string {
	_, rest, _ := strings.Cut(path, ".")
	s := strings.NewReplacer("_", " ", ".", ": ").Replace(rest)
	if s == "" {
		return path
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// idOf is a path as an element's id.
func idOf(path string) string { return "f-" + strings.NewReplacer(".", "-", "_", "-").Replace(path) }

// errorsAt returns what is wrong at a control's path, or below it.
func (s state) errorsAt(path string) []fieldError {
	var out []fieldError
	for _, f := range s.Errors {
		if controlPath(f.Path) == path {
			out = append(out, s.fieldError(f))
		}
	}
	return out
}

// errorsElsewhere is what is wrong where the form has no control.
func (s state) errorsElsewhere(all []control) []fieldError {
	var out []fieldError
	for _, f := range s.Errors {
		at := controlPath(f.Path)
		if !slices.ContainsFunc(all, func(c control) bool { return c.Path == at }) {
			out = append(out, s.fieldError(f))
		}
	}
	return out
}

// value is what stands in a control.
func (s state) value(c control) string {
	for _, name := range []string{c.Name, c.Path} {
		if v := s.Values.Get(name); v != "" {
			return v
		}
	}
	if c.Kind == modelInput {
		return s.Values.Get(nameOf("model.parameters"))
	}
	return ""
}

// hidden is what the address says that no control shows, so that submitting
// the form does not lose it.
func (s state) hidden(all []control) [][2]string {
	shown := map[string]bool{}
	for _, c := range all {
		shown[c.Name], shown[c.Path] = true, true
		if c.Kind == modelInput && s.Values.Get(nameOf("model.id")) == "" {
			shown[nameOf("model.parameters")] = true
		}
	}
	var out [][2]string
	for key, values := range s.Values {
		if !shown[key] {
			for _, v := range values {
				out = append(out, [2]string{key, v})
			}
		}
	}
	slices.SortFunc(out, func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
	return out
}

// modelText is a suggestion's second line.
func modelText(m catalog.Model) string { return units.FormatCount(float64(m.Parameters)) }
