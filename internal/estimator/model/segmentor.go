package model

import (
	"strings"

	"memplan/internal/estimator/graph"
)

// segmentorFamily is torchvision's FCN, DeepLab V3 and Lite R-ASPP. Written
// from torchvision 0.29 and 0.21, models/segmentation; the loss is that of its
// reference script.
var segmentorFamily = Family{
	Name:    "segmentor",
	Library: Torchvision,
	Architectures: []string{
		"deeplabv3_mobilenet_v3_large", "deeplabv3_resnet101", "deeplabv3_resnet50", "fcn_resnet101", "fcn_resnet50", "lraspp_mobilenet_v3_large",
	},
	Source: "pytorch/vision:torchvision/models/segmentation@v0.29.2, v0.21.0",
	New:    newSegmentor,
}

// features are a backbone's results by name.
type features struct {
	m *graph.Module
	// low comes from inside the backbone, high is its last; by width.
	low, high int64
}

func newSegmentor(c Config, b Build) (*Network, error) {
	name := c.Text("", "architecture")
	n := b.Classes
	if n == 0 {
		n = c.IntOr(21, "num_classes")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	kind, backbone, _ := strings.Cut(name, "_")
	if kind == "lraspp" {
		return segmentor(lraspp(b.DType, mobileBackbone(b.DType, true), n)), nil
	}
	var back features
	if backbone == "mobilenet_v3_large" {
		back = mobileBackbone(b.DType, b.Auxiliary)
	} else {
		back = resnetBackbone(b.DType, resnets[backbone], b.Auxiliary)
	}
	head := fcnHead(b.DType, back.high, n)
	if kind == "deeplabv3" {
		head = deepLabHead(b.DType, back.high, n)
	}
	var aux *graph.Module
	if b.Auxiliary {
		aux = fcnHead(b.DType, back.low, n)
	}
	return segmentor(simpleSegmentor(back.m, head, aux)), nil
}

// segmentor is a network whose result has logits for every pixel, and perhaps
// those of an auxiliary head, whose loss counts half.
func segmentor(root *graph.Module) *Network {
	root.Named("")
	return &Network{Root: root, Inputs: pixelInputs, LossApart: true, Forward: func(f *graph.Frame, b Batch) Outputs {
		out := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			result := f.Call(root, in[0])
			out := f.Let("out", result[0])
			loss := f.CrossEntropy
			if len(result) == 1 {
				return []*graph.Tensor{f.Let("loss", loss(out, in[1])), out}
			}
			aux := f.Let("aux", result[1])
			first := f.Let("loss", loss(out, in[1]))
			return []*graph.Tensor{f.Add(first, f.MulScalar(loss(aux, in[1]))), out, aux}
		}, b.Tensor(Pixels), b.Tensor(Labels))
		o := Outputs{Loss: f.Own(out[0]), Logits: f.Own(out[1])}
		for _, t := range out[2:] {
			o.Others = append(o.Others, f.Own(t))
		}
		return o
	}}
}

// pixelInputs are images and a class for each pixel.
func pixelInputs(s Sizes) []Input {
	return []Input{s.images(Pixels), {Name: Labels, DType: graph.I64, Shape: graph.D(s.Batch, s.Height, s.Width)}}
}

// layerGetter is IntermediateLayerGetter: the children of a backbone up to the
// last one wanted. It returns the last child's result and, where at is not
// negative, that of child at.
func layerGetter(children []*graph.Module, at int) *graph.Module {
	m := graph.NewModule("IntermediateLayerGetter")
	m.Children = children
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		var kept *graph.Tensor
		for i, c := range m.Children {
			x = f.Let("x", f.Call1(c, x))
			if i == at {
				kept = f.Let("kept", x)
			}
		}
		if at < 0 {
			return one(x)
		}
		return []*graph.Tensor{x, kept}
	}
	return m
}

// resnetBackbone is a ResNet with dilation in its last two stages; low comes
// after the third stage.
func resnetBackbone(d graph.DType, s resnetShape, low bool) features {
	s.dilate = [3]bool{false, true, true}
	children := newResNetTrunk(s, d).Children
	at := -1
	if low {
		at = len(children) - 2
	}
	return features{m: layerGetter(children, at), low: 1024, high: 2048}
}

// mobileBackbone is the features of MobileNet V3 with a dilated last stage; low
// comes before the image shrinks to a sixteenth.
func mobileBackbone(d graph.DType, low bool) features {
	s := mobilenetV3Large(2)
	strided := s.strided()
	lowAt := strided[len(strided)-4]
	at := -1
	if low {
		at = lowAt
	}
	return features{m: layerGetter(mobileFeatures(d, s).Children, at), low: s.channelsAt(lowAt), high: s.width()}
}

// simpleSegmentor is _SimpleSegmentationModel.
func simpleSegmentor(backbone, classifier, aux *graph.Module) *graph.Module {
	m := graph.NewModule("SegmentationModel")
	m.Child("backbone", backbone)
	m.Child("classifier", classifier)
	if aux != nil {
		m.Child("aux_classifier", aux)
	}
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		h, w := in[0].Shape.At(-2), in[0].Shape.At(-1)
		got := f.Call(backbone, in[0])
		for i, name := range []string{"features.out", "features.aux"}[:len(got)] {
			f.Let(name, got[i])
		}
		x := f.Let("x", f.Call1(classifier, got[0]))
		out := f.Let("x", f.Interpolate(x, h, w))
		f.Let("result.out", out)
		if aux == nil {
			return one(out)
		}
		x = f.Let("x", f.Call1(aux, got[1]))
		return []*graph.Tensor{out, f.Let("x", f.Interpolate(x, h, w))}
	}
	return m
}

// fcnHead is FCNHead.
func fcnHead(d graph.DType, in, classes int64) *graph.Module {
	return sequential(conv2d(d, in, in/4, convShape{kernel: 3, padding: 1}), batchNorm(d, in/4), relu(), dropout(0.1),
		conv2d(d, in/4, classes, convShape{kernel: 1, bias: true}))
}

// deepLabHead is DeepLabHead: atrous spatial pyramid pooling, and two
// convolutions.
func deepLabHead(d graph.DType, in, classes int64) *graph.Module {
	const width = 256
	return sequential(aspp(d, in, width), conv2d(d, width, width, convShape{kernel: 3, padding: 1}), batchNorm(d, width), relu(),
		conv2d(d, width, classes, convShape{kernel: 1, bias: true}))
}

// aspp is ASPP: convolutions of several dilations beside the image's mean.
func aspp(d graph.DType, in, width int64) *graph.Module {
	m := graph.NewModule("ASPP")
	convs := m.Child("convs", graph.NewModule("ModuleList"))
	convs.Child("0", sequential(conv2d(d, in, width, convShape{kernel: 1}), batchNorm(d, width), relu()))
	for i, rate := range []int64{12, 24, 36} {
		convs.Child(numbered(i+1), sequential(conv2d(d, in, width, convShape{kernel: 3, padding: rate, dilation: rate}), batchNorm(d, width), relu()))
	}
	convs.Child("4", asppPooling(d, in, width))
	project := m.Child("project", sequential(conv2d(d, 5*width, width, convShape{kernel: 1}), batchNorm(d, width), relu(), dropout(0.5)))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		var res []*graph.Tensor
		for _, conv := range convs.Children {
			res = append(res, f.Let("res."+conv.Name, f.Call1(conv, in[0])))
		}
		joined := f.Let("res", f.Cat(1, res...))
		return one(f.Call1(project, joined))
	}
	return m
}

// asppPooling is ASPPPooling.
func asppPooling(d graph.DType, in, width int64) *graph.Module {
	m := sequential(adaptiveAvgPool2d(1), conv2d(d, in, width, convShape{kernel: 1}), batchNorm(d, width), relu())
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		for _, c := range m.Children {
			x = f.Let("x", f.Call1(c, x))
		}
		return one(f.Interpolate(x, in[0].Shape.At(-2), in[0].Shape.At(-1)))
	}
	return m
}

// lraspp is LRASPP.
func lraspp(d graph.DType, back features, classes int64) *graph.Module {
	m := graph.NewModule("LRASPP")
	m.Child("backbone", back.m)
	head := m.Child("classifier", lrasppHead(d, back.low, back.high, classes))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		got := f.Call(back.m, in[0])
		high, low := f.Let("features.high", got[0]), f.Let("features.low", got[1])
		out := f.Let("out", f.Call1(head, low, high))
		return one(f.Let("out", f.Interpolate(out, in[0].Shape.At(-2), in[0].Shape.At(-1))))
	}
	return m
}

// lrasppHead is LRASPPHead, on low and high features.
func lrasppHead(d graph.DType, low, high, classes int64) *graph.Module {
	const width = 128
	m := graph.NewModule("LRASPPHead")
	cbr := m.Child("cbr", sequential(conv2d(d, high, width, convShape{kernel: 1}), batchNorm(d, width), reluInPlace()))
	scale := m.Child("scale", sequential(adaptiveAvgPool2d(1), conv2d(d, high, width, convShape{kernel: 1}), sigmoid()))
	lowHead := m.Child("low_classifier", conv2d(d, low, classes, convShape{kernel: 1, bias: true}))
	highHead := m.Child("high_classifier", conv2d(d, width, classes, convShape{kernel: 1, bias: true}))
	m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		low, high := in[0], in[1]
		x := f.Let("x", f.Call1(cbr, high))
		s := f.Let("s", f.Call1(scale, high))
		x = f.Let("x", f.Mul(x, s))
		x = f.Let("x", f.Interpolate(x, low.Shape.At(-2), low.Shape.At(-1)))
		return one(f.Add(f.Call1(lowHead, low), f.Call1(highHead, x)))
	}
	return m
}
