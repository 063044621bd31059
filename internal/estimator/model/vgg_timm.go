package model

import "memplan/internal/estimator/graph"

// timmVGGFamily is VGG as timm builds it, whose head begins with convolutions.
// Written from timm 1.0.31, models/vgg.py.
var timmVGGFamily = Family{
	Name:          "vgg_timm",
	Library:       Timm,
	Architectures: sortedKeys(vggs),
	Source:        "huggingface/pytorch-image-models:timm/models/vgg.py@v1.0.31",
	New:           newTimmVGG,
}

func newTimmVGG(c Config, b Build) (*Network, error) {
	shape := vggs[c.Text("", "architecture")]
	n := classes(&c, b)
	if h, w := b.Image[0]/32, b.Image[1]/32; h > 0 && (h < 7 || w < 7) {
		c.fields.Add("training.image_size", b.Image, "at least 224 pixels a side: smaller images are not modelled", "")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	m := graph.NewModule("VGG")
	features := m.Child("features", sequential(vggFeatures(b.DType, shape)...))
	logits := m.Child("pre_logits", graph.NewModule("ConvMlp"))
	logits.Child("fc1", conv2d(b.DType, 512, 4096, convShape{kernel: 7, bias: true}))
	logits.Child("act1", reluInPlace())
	logits.Child("drop", dropout(0))
	logits.Child("fc2", conv2d(b.DType, 4096, 4096, convShape{kernel: 1, bias: true}))
	logits.Child("act2", reluInPlace())
	chainNamed(logits, "x")
	head := m.Child("head", graph.NewModule("ClassifierHead"))
	pool, fc := head.Child("global_pool", selectAdaptivePool()), head.Child("fc", linear(b.DType, 4096, n, true))
	head.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(pool, in[0]))
		return one(f.Call1(fc, x))
	}
	m.Forward = featuresThenHead([]*graph.Module{features}, logits, head)
	return classifier(m), nil
}
