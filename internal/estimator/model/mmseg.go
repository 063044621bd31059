package model

import (
	"strings"

	"memplan/internal/estimator/graph"
)

// mmsegFamily is a segmentor of MMSegmentation: a backbone, perhaps a neck, and
// heads that each classify every pixel and have a loss of their own. Written
// from mmsegmentation 0.30 (models/segmentors/encoder_decoder.py,
// cascade_encoder_decoder.py) and MMCV 1.7.
var mmsegFamily = Family{
	Name: "mmseg", Explicit: "segmentor", Implementation: MMSegmentation,
	Source: "open-mmlab/mmsegmentation:mmseg/models@v0.30.0",
	New:    newMMSegmentor,
}

// mm is what the parts of an OpenMMLab model are built with.
type mm struct {
	b Build
	d graph.DType
}

// mmHead is a head of a segmentor.
type mmHead struct {
	m       *graph.Module // feature maps in, logits out
	dice    bool          // a dice loss beside the cross-entropy
	sampled bool          // a sampler weighs the pixels
}

// mmParts are readers of parts by their type.
type mmParts map[string]func(m mm, c *Config) *graph.Module

// part builds the part that a config describes, or reports its type.
func (m mm) part(c *Config, known mmParts) *graph.Module {
	build := known[c.Text("", "type")]
	if build == nil {
		names := sortedKeys(known)
		got := c.Text("", "type")
		c.fields.Add("model.config.type", got, "one of "+join(names)+" (others are not modelled)", nearest(got, names))
		return graph.NewModule("")
	}
	module := build(m, c)
	if c.OneOf("norm", "bn", "syncbn", "ln") == "syncbn" {
		module.Walk(synchronised)
	}
	return module
}

// synchronised makes a batch norm one that synchronises its statistics.
func synchronised(m *graph.Module) {
	if m.Class == "BatchNorm2d" {
		m.Class = "SyncBatchNorm"
	}
}

func newMMSegmentor(c Config, b Build) (*Network, error) {
	m := mm{b: b, d: b.DType}
	c.Only("family", "backbone", "neck", "decode_head", "auxiliary_heads", "cascade_heads", "num_classes", "logits_resized_to_input")
	if !c.Bool(true, "logits_resized_to_input") {
		c.fields.Add("model.config.logits_resized_to_input", "false", "true (others are not modelled)", "true")
	}
	root := graph.NewModule("EncoderDecoder")
	backbone, decode := c.Part("backbone"), c.Part("decode_head")
	if backbone == nil || decode == nil {
		c.fields.Add("model.config.backbone", "nothing", "a backbone, and a decode_head beside it", "")
		return nil, c.Err()
	}
	features := root.Child("backbone", m.part(backbone, mmBackbones()))
	var neck *graph.Module
	if n := c.Part("neck"); n != nil {
		neck = root.Child("neck", m.part(n, mmNecks()))
	}
	cascade, auxiliary := c.Parts("cascade_heads"), c.Parts("auxiliary_heads")
	var heads []mmHead
	for i, h := range cascade {
		heads = append(heads, m.head(h))
		root.Child("decode_head."+numbered(i), heads[i].m)
	}
	name := "decode_head"
	if len(cascade) > 0 {
		name += "." + numbered(len(cascade))
	}
	heads = append(heads, m.head(decode))
	root.Child(name, heads[len(cascade)].m)
	for i, h := range auxiliary {
		heads = append(heads, m.head(h))
		name := "auxiliary_head"
		if len(auxiliary) > 1 {
			name += "." + numbered(i)
		}
		root.Child(name, heads[len(heads)-1].m)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	return mmSegmentor(root, features, neck, heads, len(cascade)), nil
}

// head reads a head and its losses.
func (m mm) head(c *Config) mmHead {
	h := mmHead{m: m.part(c, mmHeads()), sampled: c.values["sampler"] != nil}
	if c.values["losses"] == nil {
		return h
	}
	losses := c.Words("losses")
	c.Blocks(losses, "losses", "ce", "dice")
	h.dice = strings.Contains(join(losses), "dice")
	return h
}

// mmSegmentor trains the heads on the backbone's features. Those of a cascade
// run in order, each once more to show the next what it made of them; auxiliary
// heads come last.
func mmSegmentor(root, backbone, neck *graph.Module, heads []mmHead, cascade int) *Network {
	root.Named("")
	return &Network{Root: root, Inputs: segmentInputs, LossApart: true, Forward: func(f *graph.Frame, b Batch) Outputs {
		out := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			x := letAll(f, "x", f.Call(backbone, in[0]))
			if neck != nil {
				x = letAll(f, "x", f.Call(neck, x...))
			}
			var loss *graph.Tensor
			for i, h := range heads {
				inputs := x
				if i > 0 && i <= cascade {
					inputs = append(append([]*graph.Tensor(nil), x...), f.Let("prev_outputs", f.Call1(heads[i-1].m, x...)))
				}
				for _, l := range headLosses(f, h, inputs, in[1]) {
					if loss == nil {
						loss = f.Let("loss", l)
					} else {
						loss = f.Let("loss", f.Add(loss, l))
					}
				}
			}
			return one(loss)
		}, b.Tensor(Pixels), b.Tensor(Labels))
		return Outputs{Loss: f.Own(out[0])}
	}}
}

// segmentInputs are images and a map of classes for each.
func segmentInputs(s Sizes) []Input {
	return []Input{s.images(Pixels), {Name: Labels, DType: graph.I64, Shape: graph.D(s.Batch, 1, s.Height, s.Width)}}
}

// headLosses is forward_train of a head: its logits, and the loss of each.
func headLosses(f *graph.Frame, h mmHead, features []*graph.Tensor, labels *graph.Tensor) []*graph.Tensor {
	in := append(append([]*graph.Tensor(nil), features...), labels)
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x, labels := in[:len(in)-1], in[len(in)-1]
		logits := f.Call(h.m, x...)
		for i, l := range logits {
			f.Let("seg_logits."+numbered(i), l)
		}
		var losses []*graph.Tensor
		for i, l := range logits {
			losses = append(losses, f.Let("loss."+numbered(i), pixelLoss(f, h, l, labels)))
		}
		return losses
	}, in...)
}

// pixelLoss is BaseDecodeHead.losses, which runs in fp32: logits as large as the
// labels, their cross-entropy pixel by pixel, and how many are right.
func pixelLoss(f *graph.Frame, h mmHead, logits, labels *graph.Tensor) *graph.Tensor {
	var out *graph.Tensor
	body := func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		logits := f.Let("seg_logit", f.To(in[0], graph.F32))
		logits = f.Let("seg_logit", f.Interpolate(logits, labels.Shape.D[2], labels.Shape.D[3]))
		labels := f.Let("seg_label", f.Squeeze(in[1], 1))
		each := f.Let("loss", f.CrossEntropyEach(logits, labels))
		loss := f.Let("loss", meanOver(f, each))
		if h.dice {
			loss = f.Let("loss", f.Add(loss, diceLoss(f, logits, labels)))
		}
		f.Drop(pixelAccuracy(f, logits, labels))
		return one(loss)
	}
	f.NoAutocast(func() { out = f.Func(body, logits, labels)[0] })
	return out
}

// meanOver is t.mean() over everything.
func meanOver(f *graph.Frame, t *graph.Tensor) *graph.Tensor {
	dims := make([]int, t.Shape.N)
	for i := range dims {
		dims[i] = i
	}
	return f.Mean(t, false, dims...)
}

// pixelAccuracy is accuracy of the best class (models/losses/accuracy.py).
func pixelAccuracy(f *graph.Frame, logits, labels *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		score, class := f.Top(f.Detach(in[0]))
		f.Let("pred_value", score)
		class = f.Let("pred_label", f.Transpose(class, 0, 1))
		correct := f.Let("correct", f.Equal(class, in[1]))
		number := f.To(f.View(correct, -1), graph.F32)
		return one(f.Let("res", meanOver(f, number)))
	}, logits, labels)[0]
}

// diceLoss is DiceLoss over every class (models/losses/dice_loss.py).
func diceLoss(f *graph.Frame, logits, labels *graph.Tensor) *graph.Tensor {
	return f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		batch, classes := in[0].Shape.D[0], in[0].Shape.D[1]
		pixels := in[1].Numel() / batch
		pred := f.Let("pred", f.Softmax(in[0], in[0].DType))
		f.Let("one_hot_target", f.Empty(graph.I64, batch, pixels, classes))
		mask := f.Let("valid_mask", f.Empty(graph.I64, batch, pixels))
		var total *graph.Tensor
		for range classes {
			loss := f.Func(func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor { // binary_dice_loss
				p := f.Let("pred", f.Reshape(f.Select(in[0], 1), batch, pixels))
				target := f.Let("target", f.Empty(graph.I64, batch, pixels))
				num := f.Let("num", f.Mean(f.Mul(f.Mul(p, target), in[1]), false, 1))
				den := f.Let("den", f.Mean(f.Add(f.Pow(p), target), false, 1))
				return one(meanOver(f, f.Mul(num, f.Rsqrt(den))))
			}, pred, mask)[0]
			if total == nil {
				total = f.Let("total_loss", loss)
			} else {
				total = f.Let("total_loss", f.Add(total, loss))
			}
		}
		return one(total)
	}, logits, labels)[0]
}

// letAll names each of a list's tensors.
func letAll(f *graph.Frame, name string, ts []*graph.Tensor) []*graph.Tensor {
	for i, t := range ts {
		f.Let(name+"."+numbered(i), t)
	}
	return ts
}
