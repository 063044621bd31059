package model

import "memplan/internal/estimator/graph"

// Necks of segmentors (mmseg/models/necks@v0.30.0).

// mmNecks are the necks by their type.
func mmNecks() mmParts { return mmParts{"fpn": mm.fpnNeck} }

// fpnNeck is FPN: feature maps of one width, each with the next one added.
func (m mm) fpnNeck(c *Config) *graph.Module {
	c.Only("type", "in_channels", "out_channels", "num_outs", "norm")
	widths, out := c.Ints("in_channels"), c.Int("out_channels")
	if n := c.IntOr(int64(len(widths)), "num_outs"); n != int64(len(widths)) {
		c.fields.Add("model.config.num_outs", n, "as many as in_channels has widths", "")
	}
	neck := graph.NewModule("FPN")
	var laterals, convs []*graph.Module
	for _, w := range widths {
		laterals = append(laterals, conv2d(m.d, w, out, convShape{kernel: 1, bias: true}))
		convs = append(convs, conv2d(m.d, out, out, convShape{kernel: 3, padding: 1, bias: true}))
	}
	neck.Child("lateral_convs", moduleList(laterals...))
	neck.Child("fpn_convs", moduleList(convs...))
	neck.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := make([]*graph.Tensor, len(in))
		for i, l := range laterals {
			x[i] = f.Let("laterals."+numbered(i), f.Call1(l, in[i]))
		}
		for i := len(x) - 1; i > 0; i-- {
			x[i-1] = f.Let("laterals."+numbered(i-1), f.Add(x[i-1], resizeLike(f, x[i], x[i-1])))
		}
		outs := make([]*graph.Tensor, len(in))
		for i, c := range convs {
			outs[i] = f.Let("outs."+numbered(i), f.Call1(c, x[i]))
		}
		return outs
	}
	return neck
}
