package model

import "memplan/internal/estimator/graph"

// timmInceptionFamily is Inception v3 as timm builds it, without its auxiliary
// head. Written from timm 1.0.31, models/inception_v3.py.
var timmInceptionFamily = Family{
	Name:          "inception_timm",
	Library:       Timm,
	Architectures: []string{"inception_v3"},
	Source:        "huggingface/pytorch-image-models:timm/models/inception_v3.py@v1.0.31",
	New:           newTimmInception,
}

func newTimmInception(c Config, b Build) (*Network, error) {
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	t := inception{b.DType}
	m := graph.NewModule("InceptionV3")
	var trunk, blocks []*graph.Module
	add := func(name string, part *graph.Module) { trunk = append(trunk, m.Child(name, part)) }
	mixed := func(name string, part *graph.Module) {
		add(name, part)
		blocks = append(blocks, part)
	}
	add("Conv2d_1a_3x3", t.conv(3, 32, 3, 3, 2, 0, 0))
	add("Conv2d_2a_3x3", t.conv(32, 32, 3, 3, 1, 0, 0))
	add("Conv2d_2b_3x3", t.conv(32, 64, 3, 3, 1, 1, 1))
	add("Pool1", maxPool2d(3, 2, 0))
	add("Conv2d_3b_1x1", t.conv(64, 80, 1, 1, 1, 0, 0))
	add("Conv2d_4a_3x3", t.conv(80, 192, 3, 3, 1, 0, 0))
	add("Pool2", maxPool2d(3, 2, 0))
	mixed("Mixed_5b", t.mixedA(192, 32))
	mixed("Mixed_5c", t.mixedA(256, 64))
	mixed("Mixed_5d", t.mixedA(288, 64))
	mixed("Mixed_6a", t.mixedB(288))
	mixed("Mixed_6b", t.mixedC(768, 128))
	mixed("Mixed_6c", t.mixedC(768, 160))
	mixed("Mixed_6d", t.mixedC(768, 160))
	mixed("Mixed_6e", t.mixedC(768, 192))
	before := len(trunk)
	mixed("Mixed_7a", t.mixedD(768))
	mixed("Mixed_7b", t.mixedE(1280))
	mixed("Mixed_7c", t.mixedE(2048))
	pool, fc := m.Child("global_pool", selectAdaptivePool()), m.Child("fc", linear(b.DType, 2048, n, true))
	early, late := inOrder(trunk[:before]), inOrder(trunk[before:])
	features := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Func(early, in[0])[0]) // forward_preaux
		return one(f.Let("x", f.Func(late, x)[0]))
	}
	head := inOrder([]*graph.Module{pool, fc})
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Func(features, in[0])[0])
		return one(f.Let("x", f.Func(head, x)[0]))
	}
	net := classifier(m)
	net.Blocks = blocks
	return net, nil
}

// inOrder is a function that runs modules one after another, each result under
// the name of the one before.
func inOrder(modules []*graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, m := range modules {
			x = f.Let("x", f.Call1(m, x))
		}
		return one(x)
	}
}

// inception makes the parts of Inception in one type.
type inception struct{ d graph.DType }

// conv is ConvNormAct: a kernel of h × w, batch norm and ReLU in place.
func (t inception) conv(in, out, h, w, stride, padH, padW int64) *graph.Module {
	m := graph.NewModule("ConvNormAct")
	conv := m.Child("conv", convolution(t.d, in, out, graph.D(h, w), graph.Conv{
		Stride: square(stride), Padding: graph.D(padH, padW), Dilation: square(1), OutputPadding: square(0), Groups: 1,
	}, false))
	norm := m.Child("bn", batchNormAct(t.d, out, reluInPlace))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(conv, in[0]))
		return one(f.Let("x", f.Call1(norm, x)))
	}
	return m
}

// branch is one path of a mixed block: convolutions in a row, under one name,
// then perhaps two side by side whose results are joined; or a pooling first.
type branch struct {
	name  string
	pool  func(f *graph.Frame, x *graph.Tensor) *graph.Tensor
	row   []*graph.Module
	apart []*graph.Module
}

func (b branch) run(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	if b.pool != nil {
		x = f.Let(b.name, b.pool(f, x))
	}
	for _, m := range b.row {
		x = f.Let(b.name, f.Call1(m, x))
	}
	if len(b.apart) == 0 {
		return x
	}
	parts := make([]*graph.Tensor, len(b.apart))
	for i, m := range b.apart {
		parts[i] = f.Let(b.name+"."+numbered(i), f.Call1(m, x))
	}
	x = f.Let(b.name, f.Cat(1, parts...))
	for i := range parts {
		f.Del(b.name + "." + numbered(i))
	}
	return x
}

// mixed is a block of branches, whose results are joined.
func mixed(class string, branches []branch, names []string) *graph.Module {
	m := graph.NewModule(class)
	at := 0
	for _, b := range branches {
		for _, part := range append(append([]*graph.Module{}, b.row...), b.apart...) {
			m.Child(names[at], part)
			at++
		}
	}
	run := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		outputs := make([]*graph.Tensor, len(branches))
		for i, b := range branches {
			outputs[i] = b.run(f, in[0])
		}
		return outputs
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		outputs := f.Func(run, in[0]) // _forward
		for i, o := range outputs {
			outputs[i] = f.Let("outputs."+numbered(i), o)
		}
		return one(f.Cat(1, outputs...))
	}
	return m
}

// The poolings beside convolutions.
var (
	inceptionMean = func(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
		return f.AvgPool(x, graph.Pool{Kernel: square(3), Stride: square(1), Padding: square(1)})
	}
	inceptionMax = func(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
		return f.MaxPool(x, graph.Pool{Kernel: square(3), Stride: square(2), Padding: square(0)})
	}
)

func (t inception) mixedA(in, pooled int64) *graph.Module {
	return mixed("InceptionA", []branch{
		{name: "branch1x1", row: []*graph.Module{t.conv(in, 64, 1, 1, 1, 0, 0)}},
		{name: "branch5x5", row: []*graph.Module{t.conv(in, 48, 1, 1, 1, 0, 0), t.conv(48, 64, 5, 5, 1, 2, 2)}},
		{name: "branch3x3dbl", row: []*graph.Module{t.conv(in, 64, 1, 1, 1, 0, 0), t.conv(64, 96, 3, 3, 1, 1, 1), t.conv(96, 96, 3, 3, 1, 1, 1)}},
		{name: "branch_pool", pool: inceptionMean, row: []*graph.Module{t.conv(in, pooled, 1, 1, 1, 0, 0)}},
	}, []string{"branch1x1", "branch5x5_1", "branch5x5_2", "branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3", "branch_pool"})
}

func (t inception) mixedB(in int64) *graph.Module {
	return mixed("InceptionB", []branch{
		{name: "branch3x3", row: []*graph.Module{t.conv(in, 384, 3, 3, 2, 0, 0)}},
		{name: "branch3x3dbl", row: []*graph.Module{t.conv(in, 64, 1, 1, 1, 0, 0), t.conv(64, 96, 3, 3, 1, 1, 1), t.conv(96, 96, 3, 3, 2, 0, 0)}},
		{name: "branch_pool", pool: inceptionMax},
	}, []string{"branch3x3", "branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"})
}

func (t inception) mixedC(in, c int64) *graph.Module {
	wide := func(in, out int64) *graph.Module { return t.conv(in, out, 1, 7, 1, 0, 3) }
	tall := func(in, out int64) *graph.Module { return t.conv(in, out, 7, 1, 1, 3, 0) }
	return mixed("InceptionC", []branch{
		{name: "branch1x1", row: []*graph.Module{t.conv(in, 192, 1, 1, 1, 0, 0)}},
		{name: "branch7x7", row: []*graph.Module{t.conv(in, c, 1, 1, 1, 0, 0), wide(c, c), tall(c, 192)}},
		{name: "branch7x7dbl", row: []*graph.Module{t.conv(in, c, 1, 1, 1, 0, 0), tall(c, c), wide(c, c), tall(c, c), wide(c, 192)}},
		{name: "branch_pool", pool: inceptionMean, row: []*graph.Module{t.conv(in, 192, 1, 1, 1, 0, 0)}},
	}, []string{
		"branch1x1", "branch7x7_1", "branch7x7_2", "branch7x7_3",
		"branch7x7dbl_1", "branch7x7dbl_2", "branch7x7dbl_3", "branch7x7dbl_4", "branch7x7dbl_5", "branch_pool",
	})
}

func (t inception) mixedD(in int64) *graph.Module {
	return mixed("InceptionD", []branch{
		{name: "branch3x3", row: []*graph.Module{t.conv(in, 192, 1, 1, 1, 0, 0), t.conv(192, 320, 3, 3, 2, 0, 0)}},
		{name: "branch7x7x3", row: []*graph.Module{
			t.conv(in, 192, 1, 1, 1, 0, 0), t.conv(192, 192, 1, 7, 1, 0, 3), t.conv(192, 192, 7, 1, 1, 3, 0), t.conv(192, 192, 3, 3, 2, 0, 0),
		}},
		{name: "branch_pool", pool: inceptionMax},
	}, []string{"branch3x3_1", "branch3x3_2", "branch7x7x3_1", "branch7x7x3_2", "branch7x7x3_3", "branch7x7x3_4"})
}

func (t inception) mixedE(in int64) *graph.Module {
	apart := func(in int64) []*graph.Module {
		return []*graph.Module{t.conv(in, 384, 1, 3, 1, 0, 1), t.conv(in, 384, 3, 1, 1, 1, 0)}
	}
	return mixed("InceptionE", []branch{
		{name: "branch1x1", row: []*graph.Module{t.conv(in, 320, 1, 1, 1, 0, 0)}},
		{name: "branch3x3", row: []*graph.Module{t.conv(in, 384, 1, 1, 1, 0, 0)}, apart: apart(384)},
		{name: "branch3x3dbl", row: []*graph.Module{t.conv(in, 448, 1, 1, 1, 0, 0), t.conv(448, 384, 3, 3, 1, 1, 1)}, apart: apart(384)},
		{name: "branch_pool", pool: inceptionMean, row: []*graph.Module{t.conv(in, 192, 1, 1, 1, 0, 0)}},
	}, []string{
		"branch1x1", "branch3x3_1", "branch3x3_2a", "branch3x3_2b",
		"branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3a", "branch3x3dbl_3b", "branch_pool",
	})
}
