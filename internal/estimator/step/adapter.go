package step

import (
	"regexp"
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Adapters as PEFT puts them on a model before the run: every targeted linear
// layer becomes a module with the frozen layer and a low-rank pair beside it,
// under the same pointer, so that the model's program does not know. Read from
// peft 0.21.2, tuners/lora/layer.py, tuners/tuners_utils.py, utils/other.py.

// adapter is the low-rank pair to be put on layers.
type adapter struct {
	rank    int64
	dropout float64
	dtype   graph.DType
	dora    bool
	off     *bool // disable_adapters
}

// adapt puts low-rank adapters on the module tree and freezes the rest. It
// fails with fault.Fields where no module of the model is a target, or one that
// is no linear layer.
func adapt(r *Run, family *model.Family) error {
	t := &r.Job.Training
	if t.Method != "lora" && t.Method != "dora" {
		return nil
	}
	a := t.Adapter
	if r.Job.Model.Implementation == model.LitGPT {
		return adaptLitGPT(r, a)
	}
	targets, err := findTargets(r.Net, a, family.AdapterTargets)
	if err != nil {
		return err
	}
	for _, p := range r.Net.Root.Parameters() {
		p.Trained = false
	}
	low := adapter{off: &r.adaptersOff, rank: int64(a.Rank), dropout: a.Dropout, dora: t.Method == "dora"}
	for _, m := range targets {
		low.dtype = adapterType(r, m, a.DType)
		low.wrap(m)
	}
	saved := savedModules(r.Net.Root, a.ModulesToSave)
	if err := refuseQuantized(saved); err != nil {
		return err
	}
	for _, m := range saved {
		trainCopy(r.Net.Root, m)
	}
	return nil
}

// adapterType is the type of an adapter's weights: fp32 with
// autocast_adapter_dtype, else the base layer's.
func adapterType(r *Run, m *graph.Module, d spec.DType) graph.DType {
	if d == spec.FP32 {
		return graph.F32
	}
	return baseType(r, m)
}

// adaptable reports whether an adapter can sit on a module.
func adaptable(m *graph.Module) bool {
	return slices.Contains([]string{"Linear", "Conv1D", linear4bit, linear8bit}, m.Class)
}

// findTargets lists the modules that get an adapter, in module order. As with
// PEFT a name may match nothing where another does.
func findTargets(net *model.Network, a *spec.Adapter, family []string) ([]*graph.Module, error) {
	names := a.TargetModules.Names
	if a.TargetModules.IsZero() {
		names = family
	}
	var targets []*graph.Module
	var fields fault.Fields
	excluded := segments(a.ModulesToSave)
	net.Root.Walk(func(m *graph.Module) {
		switch {
		case m.Path == "" || excluded(m.Path):
		case a.TargetModules.AllLinear:
			if adaptable(m) && m != net.Head {
				targets = append(targets, m)
			}
		case !endsWith(m.Path, names):
		case adaptable(m):
			targets = append(targets, m)
		default:
			fields.Add("training.adapter.target_modules", m.Path, "linear layers, not "+m.Class, "all-linear")
		}
	})
	if len(targets)+len(fields) == 0 {
		fields.Add("training.adapter.target_modules", strings.Join(names, ", "), "modules of this model: "+strings.Join(linearNames(net.Root), ", "), "all-linear")
	}
	return targets, fields.Err()
}

// endsWith reports whether one of the names is the end of a path, in whole
// parts.
func endsWith(path string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return path == n || strings.HasSuffix(path, "."+n) })
}

// linearNames lists the distinct names of the layers an adapter can sit on.
func linearNames(root *graph.Module) []string {
	var names []string
	root.Walk(func(m *graph.Module) {
		if adaptable(m) && !slices.Contains(names, m.Name) {
			names = append(names, m.Name)
		}
	})
	return names
}

// segments matches a path that has one of the names among its parts: modules
// that are trained whole get no adapter.
func segments(names []string) func(path string) bool {
	var patterns []*regexp.Regexp
	for _, name := range names {
		patterns = append(patterns, regexp.MustCompile(`(^|\.)`+regexp.QuoteMeta(name)+`($|\.)`))
	}
	return func(path string) bool {
		return slices.ContainsFunc(patterns, func(p *regexp.Regexp) bool { return p.MatchString(path) })
	}
}

// wrap makes m a lora.Linear: its layer moves to the child base_layer.
func (a adapter) wrap(m *graph.Module) {
	base := &graph.Module{}
	*base = *m
	out, in := features(m)
	*m = graph.Module{Class: "lora.Linear", Name: m.Name, Path: m.Path}
	m.Child("base_layer", base)
	child := func(name string, c *graph.Module) *graph.Module {
		m.Child(name, graph.NewModule("ModuleDict")).Child("default", c)
		return c
	}
	p := pair{
		base:    base,
		dropout: child("lora_dropout", dropoutModule(a.dropout)),
		down:    child("lora_A", lowRank(a.dtype, in, a.rank)),
		up:      child("lora_B", lowRank(a.dtype, a.rank, out)),
		dtype:   a.dtype,
	}
	m.Forward = p.lora
	switch base.Class {
	case linear4bit:
		m.Forward = p.lora4bit
	case linear8bit:
		m.Forward = p.lora8bit
	}
	if a.dora {
		m.Forward = p.dora(child("lora_magnitude_vector", graph.NewModule("DoraLinearLayer")), a, out)
	}
	m.Forward = p.unless(a.off, m.Forward)
}

// features gives a layer's width out and in; Conv1D stores its weight turned.
func features(m *graph.Module) (out, in int64) {
	w := m.Params[0].Shape
	if m.Class == "Conv1D" {
		return w.D[1], w.D[0]
	}
	return w.D[0], w.D[1]
}

// lowRank is one half of the pair: an nn.Linear without bias.
func lowRank(d graph.DType, in, out int64) *graph.Module {
	m := graph.NewModule("Linear")
	w := m.Param("weight", d, out, in)
	w.Category = graph.Adapters
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return []*graph.Tensor{f.Linear(in[0], w.T(), nil)}
	}
	return m
}

// dropoutModule is nn.Dropout, or nn.Identity for none.
func dropoutModule(p float64) *graph.Module {
	m := graph.NewModule("Dropout")
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return []*graph.Tensor{f.Dropout(in[0], p)}
	}
	return m
}

// pair is a layer with its low-rank pair: lora_A goes down to the rank, lora_B
// up again.
type pair struct {
	base, dropout, down, up *graph.Module
	dtype                   graph.DType
}

// unless is the forward that with adapters off is the base layer's alone.
func (p pair) unless(off *bool, forward func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		if off == nil || !*off {
			return forward(f, in...)
		}
		return []*graph.Tensor{f.Let("result", f.Call1(p.base, in[0]))}
	}
}

// lora is Linear.forward of tuners/lora/layer.py.
func (p pair) lora(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	result := f.Let("result", f.Call1(p.base, in[0]))
	resultType := result.DType
	x := f.Let("x", f.To(in[0], p.dtype))
	result = f.Let("result", f.Add(result, f.MulScalar(f.Call1(p.up, f.Call1(p.down, f.Call1(p.dropout, x))))))
	return []*graph.Tensor{f.Let("result", f.To(result, resultType))}
}
