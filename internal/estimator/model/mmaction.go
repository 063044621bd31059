package model

import "memplan/internal/estimator/graph"

// Recognisers of MMAction2: a backbone over the frames of a video, and a head
// that classifies it. Written from mmaction2 1.2 and MMCV 2.1.

// frame2dFamily is a recogniser whose frames fold into the batch (TSN, TSM,
// TANet; models/recognizers/recognizer2d.py).
var frame2dFamily = Family{
	Name: "frame2d", Explicit: "frame2d", Implementation: MMAction,
	Source: "open-mmlab/mmaction2:mmaction/models@v1.2.0",
	New:    newFrame2D,
}

// recogniser trains a network of videos on a class for each.
func recogniser(root *graph.Module, frames func(s Sizes) graph.Dims) *Network {
	root.Named("")
	inputs := func(s Sizes) []Input {
		return []Input{{Name: Pixels, DType: s.Continuous, Shape: frames(s)}, {Name: Labels, DType: graph.I64, Shape: graph.D(s.Batch)}}
	}
	return &Network{Root: root, Inputs: inputs, LossApart: true, Forward: func(f *graph.Frame, b Batch) Outputs {
		out := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			scores := f.Let("cls_scores", f.Call1(root, in[0]))
			return one(f.Let("loss_cls", f.CrossEntropy(scores, in[1])))
		}, b.Tensor(Pixels), b.Tensor(Labels))
		return Outputs{Loss: f.Own(out[0])}
	}}
}

// clips are videos as [samples, channels, frames, height, width].
func clips(s Sizes) graph.Dims {
	return graph.D(s.Batch, s.channels(), s.Frames, s.Height, s.Width)
}

// mma is what the parts of a recogniser are built with.
type mma struct {
	mm
	frames int64
	// temporal is what looks at several frames: none, shift or tam.
	temporal string
	share    int64 // of the channels that a shift moves, as a divisor
}

func newFrame2D(c Config, b Build) (*Network, error) {
	m := mma{mm: mm{b: b, d: b.DType}, frames: b.Frames, temporal: c.OneOf("temporal_module", "none", "shift", "tam")}
	c.Only("family", "backbone", "temporal_module", "head", "num_classes")
	backbone, head := c.Part("backbone"), c.Part("head")
	if backbone == nil || head == nil {
		c.fields.Add("model.config.backbone", "nothing", "a backbone, and a head beside it", "")
		return nil, c.Err()
	}
	if m.frames < 1 {
		c.fields.Add("training.num_frames", m.frames, "how many frames of a video are looked at", "8")
		m.frames = 1
	}
	m.share = backbone.IntOr(8, "shift_div")
	if n := backbone.IntOr(m.frames, "num_segments"); n != m.frames && c.values["temporal_module"] != "none" {
		backbone.fields.Add("model.config.num_segments", n, "training.num_frames", numbered(int(m.frames)))
	}
	root := graph.NewModule("Recognizer2D")
	known := map[string]func(*Config) *graph.Module{"resnet": m.resnet, "mobilenet_v2": m.mobilenetV2}
	kind := backbone.OneOf("type", "resnet", "mobilenet_v2")
	if known[kind] == nil {
		return nil, c.Err()
	}
	net := root.Child("backbone", known[kind](backbone))
	if backbone.OneOf("norm", "bn", "syncbn") == "syncbn" {
		net.Walk(synchronised)
	}
	cls := root.Child("cls_head", m.consensusHead(head, c.classes(b, 400)))
	if err := c.Err(); err != nil {
		return nil, err
	}
	frames, channels := m.frames, backbone.IntOr(3, "in_channels")
	root.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		s := in[0].Shape.D
		x := f.Let("inputs", f.View(in[0], s[0]*s[1], s[2], s[3], s[4]))
		feats := f.Let("feats", f.Call1(net, x))
		return one(f.Call1(cls, feats))
	}
	return recogniser(root, func(s Sizes) graph.Dims { return graph.D(s.Batch, frames, channels, s.Height, s.Width) }), nil
}

// classes is how many the job, or the architecture, has.
func (c *Config) classes(b Build, fallback int64) int64 {
	if b.Classes > 0 {
		return b.Classes
	}
	return c.IntOr(fallback, "num_classes")
}

// consensusHead is TSNHead, which takes the mean of the frames before it
// classifies, or TSMHead, which does so after.
func (m mma) consensusHead(c *Config, classes int64) *graph.Module {
	c.Only("type", "dropout", "in_channels")
	c.OneOf("type", "avg_consensus")
	width, drop, frames := c.Int("in_channels"), c.Float(0.4, "dropout"), m.frames
	head := graph.NewModule("TSNHead")
	pool := head.Child("avg_pool", adaptiveAvgPool2d(1))
	fc := head.Child("fc_cls", linear(m.d, width, classes, true))
	head.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(pool, in[0]))
		x = f.Let("x", f.Reshape(x, -1, frames, width, 1, 1))
		x = f.Let("x", f.Mean(x, true, 1))
		x = f.Let("x", f.Squeeze(x, 1))
		x = f.Let("x", f.Dropout(x, drop))
		x = f.Let("x", f.View(x, x.Shape.D[0], -1))
		return one(f.Let("cls_score", f.Call1(fc, x)))
	}
	if m.temporal == "none" {
		return head
	}
	head.Class = "TSMHead"
	head.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(pool, in[0]))
		x = f.Let("x", flatten(f, x))
		x = f.Let("x", f.Dropout(x, drop))
		score := f.Let("cls_score", f.Call1(fc, x))
		score = f.Let("cls_score", f.View(score, -1, frames, score.Shape.D[1]))
		score = f.Let("cls_score", f.Mean(score, true, 1))
		return one(f.Squeeze(score, 1))
	}
	return head
}
