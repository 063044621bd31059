package model

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"memplan/internal/estimator/graph"
)

// The torch.nn modules that image models are made of, and the loss a plain loop
// puts on them.

// imageFamilies lists the architectures that see images.
func imageFamilies() []Family {
	return []Family{
		resnetFamily, mobilenetV3Family, vggFamily, densenetFamily, efficientnetFamily, regnetFamily, shufflenetFamily, segmentorFamily,
		timmResNetFamily, timmViTFamily, timmEfficientNetFamily, timmConvNeXtFamily, timmSwinFamily, timmVGGFamily, timmInceptionFamily, timmResNeStFamily, timmHRNetFamily, timmBeitFamily, torchvisionViTFamily, vitFamily, dinov2Family, mmsegFamily,
		frame2dFamily, resnet3dFamily, slowfastFamily, c3dFamily,
	}
}

// Names of the tensors of an image batch.
const (
	Pixels      = "x" // of timm and torchvision: the only argument
	PixelValues = "pixel_values"
)

// images is a batch of images under a name.
func (s Sizes) images(name string) Input {
	return Input{Name: name, DType: s.Continuous, Shape: graph.D(s.Batch, s.channels(), s.Height, s.Width)}
}

// channels of an image are three unless the job says otherwise.
func (s Sizes) channels() int64 {
	if s.Channels == 0 {
		return 3
	}
	return s.Channels
}

// imageInputs are images and a class for each.
func imageInputs(s Sizes) []Input {
	return []Input{s.images(Pixels), {Name: Labels, DType: graph.I64, Shape: graph.D(s.Batch)}}
}

// classifier is a network that a plain loop trains with nn.CrossEntropyLoss on
// its result, which the loop names.
func classifier(root *graph.Module) *Network {
	root.Named("")
	return &Network{Root: root, Inputs: imageInputs, LossApart: true, Forward: func(f *graph.Frame, b Batch) Outputs {
		out := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			out := f.Let("out", f.Call1(root, in[0]))
			return []*graph.Tensor{f.CrossEntropy(out, in[1]), out}
		}, b.Tensor(Pixels), b.Tensor(Labels))
		return Outputs{Loss: f.Own(out[0]), Logits: f.Own(out[1])}
	}}
}

// classes is how many a classifier has: as the job says, or the config, or
// ImageNet's.
func classes(c *Config, b Build) int64 {
	if b.Classes > 0 {
		return b.Classes
	}
	return c.IntOr(1000, "num_classes")
}

// TakesImages reports an error where the job's images are not of the one size
// the model takes.
func (c *Config) TakesImages(b Build, side int64) {
	if h, w := b.Image[0], b.Image[1]; h > 0 && (h != side || w != side) {
		want := fmt.Sprintf("[%d, %d], the only size this model takes", side, side)
		c.fields.Add("training.image_size", fmt.Sprintf("[%d, %d]", h, w), want, fmt.Sprintf("[%d, %d]", side, side))
	}
}

// convShape is what nn.Conv2d is told beside its channels; zero values are its
// defaults, and padding is what keeps the size where samePadding says so.
type convShape struct {
	kernel, stride, padding, dilation, groups int64
	bias, transposed                          bool
}

// conv2d is nn.Conv2d with square windows.
func conv2d(d graph.DType, in, out int64, s convShape) *graph.Module {
	return convN(d, in, out, square(s.kernel), s)
}

func square(n int64) graph.Dims { return graph.D(n, n) }

func repeated(n int8, v int64) graph.Dims {
	d := graph.Dims{N: n}
	for i := range int(n) {
		d.D[i] = v
	}
	return d
}

// convN is a convolution over as many dimensions as its kernel has, with the
// same stride, padding and dilation in each.
func convN(d graph.DType, in, out int64, kernel graph.Dims, s convShape) *graph.Module {
	n := kernel.N
	c := graph.Conv{
		Stride: repeated(n, max(s.stride, 1)), Padding: repeated(n, s.padding), Dilation: repeated(n, max(s.dilation, 1)),
		OutputPadding: repeated(n, 0), Groups: max(s.groups, 1), Transposed: s.transposed,
	}
	return convolution(d, in, out, kernel, c, s.bias)
}

// convolution is nn.Conv1d, 2d or 3d, or a transposed one.
func convolution(d graph.DType, in, out int64, kernel graph.Dims, c graph.Conv, bias bool) *graph.Module {
	name := "Conv"
	rows, columns := out, in/c.Groups
	if c.Transposed {
		name, rows, columns = "ConvTranspose", in, out/c.Groups
	}
	m := graph.NewModule(name + strconv.Itoa(int(kernel.N)) + "d")
	weight := m.Param("weight", d, append([]int64{rows, columns}, kernel.Slice()...)...)
	var b *graph.Param
	if bias {
		b = m.Param("bias", d, out)
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.Convolution(in[0], weight.T(), tensorOf(b), c))
	}
	return m
}

// batchNorm is nn.BatchNorm2d or 3d, whose running statistics are buffers.
func batchNorm(d graph.DType, channels int64) *graph.Module {
	m := graph.NewModule("BatchNorm2d")
	weight, bias := m.Param("weight", d, channels), m.Param("bias", d, channels)
	m.Buffer("running_mean", d, channels)
	m.Buffer("running_var", d, channels)
	m.Buffer("num_batches_tracked", graph.I64)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		return one(f.BatchNorm(in[0], weight.T(), bias.T(), !m.Eval))
	}
	return m
}

// function is a module without parameters around one operation.
func function(class string, op func(f *graph.Frame, x *graph.Tensor) *graph.Tensor) *graph.Module {
	m := graph.NewModule(class)
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { return one(op(f, in[0])) }
	return m
}

func reluInPlace() *graph.Module { return function("ReLU", (*graph.Frame).ReluInPlace) }

func identity() *graph.Module {
	return function("Identity", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return x })
}

func maxPool2d(kernel, stride, padding int64) *graph.Module {
	return pool2d("MaxPool2d", (*graph.Frame).MaxPool, kernel, stride, padding)
}

func avgPool2d(kernel, stride, padding int64) *graph.Module {
	return pool2d("AvgPool2d", (*graph.Frame).AvgPool, kernel, stride, padding)
}

func pool2d(class string, op func(*graph.Frame, *graph.Tensor, graph.Pool) *graph.Tensor, kernel, stride, padding int64) *graph.Module {
	p := graph.Pool{Kernel: square(kernel), Stride: square(stride), Padding: square(padding)}
	return function(class, func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return op(f, x, p) })
}

func adaptiveAvgPool2d(size int64) *graph.Module {
	return function("AdaptiveAvgPool2d", func(f *graph.Frame, x *graph.Tensor) *graph.Tensor { return f.AdaptiveAvgPool(x, size) })
}

// flatten is torch.flatten(x, 1).
func flatten(f *graph.Frame, x *graph.Tensor) *graph.Tensor {
	return f.Reshape(x, x.Shape.D[0], x.Numel()/x.Shape.D[0])
}

// flattened is a forward that runs modules one after the other, flattens, and
// ends with a head.
func flattened(head *graph.Module, trunk ...*graph.Module) func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
	return func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, m := range trunk {
			x = f.Let("x", f.Call1(m, x))
		}
		x = f.Let("x", flatten(f, x))
		return one(f.Let("x", f.Call1(head, x)))
	}
}

// sequential is nn.Sequential of children numbered from 0.
func sequential(children ...*graph.Module) *graph.Module {
	m := graph.NewModule("Sequential")
	for i, c := range children {
		m.Child(strconv.Itoa(i), c)
	}
	chain(m)
	return m
}

// chain makes m call its children one after the other, as nn.Sequential does.
func chain(m *graph.Module) {
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, c := range m.Children {
			x = f.Let("input", f.Call1(c, x))
		}
		return one(x)
	}
}

// sortedKeys are the names of a table of architectures, in order.
func sortedKeys[V any](table map[string]V) []string { return slices.Sorted(maps.Keys(table)) }

// imageClassification is the head of an image model of transformers.
const imageClassification = "ForImageClassification"

// pixelValues are images and a class for each, as transformers names them.
func pixelValues(s Sizes) []Input {
	return []Input{s.images(PixelValues), {Name: Labels, DType: graph.I64, Shape: graph.D(s.Batch)}}
}

// imageClassifier is a model of transformers that returns its loss beside the
// logits (loss/loss_utils.py:ForSequenceClassificationLoss).
func imageClassifier(root *graph.Module, b Build, logits func(f *graph.Frame, pixels *graph.Tensor) *graph.Tensor) *Network {
	root.Named("")
	forward := func(f *graph.Frame, batch Batch) Outputs {
		out := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			logits := f.Let("logits", logits(f, in[0]))
			loss := f.Let("loss", classLoss(f, batch, logits))
			return []*graph.Tensor{loss, logits}
		}, batch.Tensors...)
		return Outputs{Loss: f.Own(out[0]), Logits: f.Own(out[1])}
	}
	return &Network{Root: root, Inputs: pixelValues, Items: Items{Aligned: true}, Forward: forward}
}

// classLoss is the mean over the samples, or their sum divided by their number
// where a trainer passes it.
func classLoss(f *graph.Frame, b Batch, logits *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		loss := f.Let("loss", f.CrossEntropy(f.View(in[0], -1, in[0].Shape.At(-1)), f.View(in[1], -1)))
		switch {
		case b.NumItems != nil:
			loss = f.Let("loss", f.DivTensor(loss, b.NumItems))
		case b.Counted:
			loss = f.Let("loss", f.MulScalar(loss))
		}
		return one(loss)
	}, logits, b.Tensor(Labels))[0]
}
