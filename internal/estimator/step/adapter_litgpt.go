package step

import (
	"strconv"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// LitGPT's adapters (litgpt/lora.py @v0.4.8, lit_gpt/lora.py @8641822): a layer
// with two matrices beside it, and for the one product of queries, keys and
// values one pair for those of them that are adapted.

// litgptTargets maps the names that config files of other libraries have for
// adapted layers to the switches of LitGPT's.
var litgptTargets = map[string]string{
	"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "projection",
	"gate_proj": "mlp", "up_proj": "mlp", "down_proj": "mlp", "lm_head": "head",
	"query": "query", "key": "key", "value": "value", "projection": "projection", "mlp": "mlp", "head": "head",
}

// litgptPair is what a LoRALinear has beside its layer.
type litgptPair struct {
	linear, dropout *graph.Module
	down, up        *graph.Param
	sizes           []int64 // of the parts of queries, keys and values; nil of a plain layer
	grouped         bool    // keys and values have fewer heads
	width           int64
	columns         *graph.Param // lora_ind, where not all parts are adapted
}

// adaptLitGPT replaces the targeted layers and freezes all but what it put
// beside them.
func adaptLitGPT(r *Run, a *spec.Adapter) error {
	on, err := litgptSwitches(a)
	if err != nil {
		return err
	}
	for _, p := range r.Net.Root.Parameters() {
		p.Trained = false
	}
	dtype := DTypeOf(a.DType)
	var qkv, plain []*graph.Module
	r.Net.Root.Walk(func(m *graph.Module) {
		switch parent, name := parentOf(m.Path), m.Name; {
		case m.Class != "Linear" && m.Class != linear4bit:
		case name == "attn" || name == "qkv":
			if on["query"] || on["key"] || on["value"] {
				qkv = append(qkv, m)
			}
		case name == "lm_head" && on["head"], name == "proj" && parent == "attn" && on["projection"], parent == "mlp" && on["mlp"]:
			plain = append(plain, m)
		}
	})
	for _, m := range plain {
		wrapLitGPT(m, a, dtype)
	}
	for _, m := range qkv {
		wrapLitGPTQKV(r, m, a, dtype, on)
	}
	return nil
}

// parentOf is the second last part of a path.
func parentOf(path string) string {
	parts := strings.Split(path, ".")
	if len(parts) < 2 {
		return ""
	}
	return parts[len(parts)-2]
}

// litgptSwitches reads which kinds of layers are adapted.
func litgptSwitches(a *spec.Adapter) (map[string]bool, error) {
	on := map[string]bool{}
	targets := a.TargetModules.Names
	switch {
	case a.TargetModules.AllLinear:
		targets = []string{"query", "key", "value", "projection", "mlp", "head"}
	case a.TargetModules.IsZero():
		targets = []string{"query", "value"}
	}
	var fields fault.Fields
	for _, n := range targets {
		if litgptTargets[n] == "" {
			fields.Add("training.adapter.target_modules", n, "one of "+names(litgptTargets), "query")
		}
		on[litgptTargets[n]] = true
	}
	if len(a.ModulesToSave) > 0 {
		fields.Add("training.adapter.modules_to_save", strings.Join(a.ModulesToSave, ", "), "nothing: it is not modelled for LitGPT", "")
	}
	return on, fields.Err()
}

// inside moves a layer to the child linear of a LoRALinear in its place.
func inside(m *graph.Module, class string) *graph.Module {
	base := &graph.Module{}
	*base = *m
	*m = graph.Module{Class: class, Name: m.Name, Path: m.Path}
	return m.Child("linear", base)
}

// matrix is one of the two.
func matrix(m *graph.Module, name string, d graph.DType, rows, columns int64) *graph.Param {
	p := m.Param(name, d, rows, columns)
	p.Category = graph.Adapters
	return p
}

// wrapLitGPT makes m a LoRALinear.
func wrapLitGPT(m *graph.Module, a *spec.Adapter, d graph.DType) {
	out, in := features(m)
	p := litgptPair{linear: inside(m, "LoRALinear"), dropout: m.Child("lora_dropout", dropoutModule(a.Dropout))}
	p.down = matrix(m, "lora_A", d, int64(a.Rank), in)
	p.up = matrix(m, "lora_B", d, out, int64(a.Rank))
	m.Forward = p.plain
}

// plain is LoRALinear.forward.
func (p litgptPair) plain(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	pretrained := f.Let("pretrained", f.Call1(p.linear, in[0]))
	down := f.MatmulMatrix(f.Call1(p.dropout, in[0]), f.Transpose(p.down.T(), 0, 1))
	lora := f.Let("lora", f.MulScalar(f.MatmulMatrix(down, f.Transpose(p.up.T(), 0, 1))))
	return []*graph.Tensor{f.Add(pretrained, lora)}
}

// wrapLitGPTQKV makes m a LoRAQKVLinear.
func wrapLitGPTQKV(r *Run, m *graph.Module, a *spec.Adapter, d graph.DType, on map[string]bool) {
	out, in := features(m)
	p := litgptPair{linear: inside(m, "LoRAQKVLinear"), dropout: m.Child("lora_dropout", dropoutModule(a.Dropout)), width: out}
	heads := r.Net.Heads
	parts := []struct {
		name  string
		width int64
	}{{"query", heads.Width * heads.Queries}, {"key", heads.Width * heads.Groups}, {"value", heads.Width * heads.Groups}}
	var total int64
	for _, part := range parts {
		if on[part.name] {
			p.sizes = append(p.sizes, part.width)
			total += part.width
		}
	}
	p.grouped = heads.Queries != heads.Groups
	p.down = matrix(m, "lora_A", d, int64(a.Rank*len(p.sizes)), in)
	p.up = matrix(m, "lora_B", d, total, int64(a.Rank))
	if len(p.sizes) < len(parts) && !r.M.Versions.LitGPT.Before(litgptBufferSince) {
		p.columns = m.Buffer("_lora_ind", graph.I64, total)
	}
	m.Forward = p.qkv
}

// litgptBufferSince is when the columns of what is adapted became a buffer,
// where a list had been sent to the card in every forward.
var litgptBufferSince = spec.Version{0, 1}

// qkv is LoRAQKVLinear.forward.
func (p litgptPair) qkv(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	pretrained := f.Let("pretrained", f.Call1(p.linear, in[0]))
	down := f.Let("after_A", f.Linear(f.Call1(p.dropout, in[0]), p.down.T(), nil))
	up := f.Func(p.conv1d, f.Transpose(down, -2, -1), f.Unsqueeze(p.up.T(), 2))[0]
	up = f.Let("after_B", f.Transpose(up, -2, -1))
	lora := f.Let("lora", f.MulScalar(f.Func(p.zeroPad, up)[0]))
	return []*graph.Tensor{f.Add(pretrained, lora)}
}

// conv1d applies to each part its own matrix: groups of one convolution, or one
// each where their sizes differ.
func (p litgptPair) conv1d(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	c := graph.Conv{Stride: graph.D(1), Padding: graph.D(0), Dilation: graph.D(1), Groups: 1}
	if !p.grouped {
		c.Groups = int64(len(p.sizes))
		return []*graph.Tensor{f.Convolution(in[0], in[1], nil, c)}
	}
	inputs := f.Split(in[0], int64(len(p.sizes)), 1)
	for i, t := range inputs {
		inputs[i] = f.Let("input_splitted["+strconv.Itoa(i)+"]", t)
	}
	weights := f.SplitSizes(in[1], 0, p.sizes...)
	for i, t := range weights {
		weights[i] = f.Let("weight_splitted["+strconv.Itoa(i)+"]", t)
	}
	parts := make([]*graph.Tensor, len(inputs))
	for i := range inputs {
		parts[i] = f.Let("["+strconv.Itoa(i)+"]", f.Convolution(inputs[i], weights[i], nil, c))
	}
	return []*graph.Tensor{f.Cat(1, parts...)}
}

// zeroPad puts the parts where they belong among queries, keys and values.
func (p litgptPair) zeroPad(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	x := in[0]
	switch {
	case len(p.sizes) == 3:
		return []*graph.Tensor{x}
	case p.columns != nil:
		return []*graph.Tensor{f.IndexCopyZeros(x, p.columns.T(), p.width, false)}
	}
	x = f.Let("x", f.Transpose(x, 0, 1))
	columns := f.Empty(graph.I64, x.Shape.At(-1))
	rows := f.IndexCopyZeros(f.Reshape(x, -1, x.Shape.At(-1)), columns, p.width, true)
	rows = f.Let("result", rows)
	padded := f.View(rows, x.Shape.D[0], x.Shape.D[1], p.width)
	return []*graph.Tensor{f.Transpose(padded, 0, 1)}
}
