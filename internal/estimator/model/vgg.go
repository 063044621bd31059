package model

import "memplan/internal/estimator/graph"

// vggFamily is VGG as torchvision builds it. Written from torchvision 0.29 and
// 0.21, models/vgg.py.
var vggFamily = Family{
	Name:          "vgg",
	Library:       Torchvision,
	Architectures: sortedKeys(vggs),
	Source:        "pytorch/vision:torchvision/models/vgg.py@v0.29.2, v0.21.0",
	New:           newVGG,
}

// vggShape is how many convolutions each of the five stages has.
type vggShape struct {
	stages [5]int
	norm   bool
}

var vggs = map[string]vggShape{
	"vgg11": {stages: [5]int{1, 1, 2, 2, 2}}, "vgg11_bn": {stages: [5]int{1, 1, 2, 2, 2}, norm: true},
	"vgg13": {stages: [5]int{2, 2, 2, 2, 2}}, "vgg13_bn": {stages: [5]int{2, 2, 2, 2, 2}, norm: true},
	"vgg16": {stages: [5]int{2, 2, 3, 3, 3}}, "vgg16_bn": {stages: [5]int{2, 2, 3, 3, 3}, norm: true},
	"vgg19": {stages: [5]int{2, 2, 4, 4, 4}}, "vgg19_bn": {stages: [5]int{2, 2, 4, 4, 4}, norm: true},
}

func newVGG(c Config, b Build) (*Network, error) {
	shape := vggs[c.Text("", "architecture")]
	n := classes(&c, b)
	if err := c.Err(); err != nil {
		return nil, err
	}
	d := b.DType
	m := graph.NewModule("VGG")
	features := m.Child("features", sequential(vggFeatures(d, shape)...))
	pool := m.Child("avgpool", adaptiveAvgPool2d(7))
	head := m.Child("classifier", sequential(
		linear(d, 512*7*7, 4096, true), reluInPlace(), dropout(0.5),
		linear(d, 4096, 4096, true), reluInPlace(), dropout(0.5), linear(d, 4096, n, true)))
	m.Forward = flattened(head, features, pool)
	return classifier(m), nil
}

// vggFeatures are the convolutions of the five stages, each of which ends with a
// pooling.
func vggFeatures(d graph.DType, shape vggShape) []*graph.Module {
	var layers []*graph.Module
	in := int64(3)
	for i, count := range shape.stages {
		out := min(int64(64)<<i, 512)
		for range count {
			layers = append(layers, conv2d(d, in, out, convShape{kernel: 3, padding: 1, bias: true}))
			if shape.norm {
				layers = append(layers, batchNorm(d, out))
			}
			layers = append(layers, reluInPlace())
			in = out
		}
		layers = append(layers, maxPool2d(2, 2, 0))
	}
	return layers
}
