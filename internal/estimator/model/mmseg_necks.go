package model

import "memplan/internal/estimator/graph"

// Necks of segmentors (mmseg/models/necks@v0.30.0).

// mmNecks are the necks by their type.
func mmNecks() mmParts {
	return mmParts{"fpn": mm.fpnNeck, "mla": mm.mlaNeck, "multilevel": mm.multilevelNeck, "feature2pyramid": mm.pyramidNeck}
}

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

// mlaNeck is MLANeck: normalised maps of one width, each with those after it
// added.
func (m mm) mlaNeck(c *Config) *graph.Module {
	c.Only("type", "in_channels", "out_channels", "norm", "activation")
	widths, out := c.Ints("in_channels"), c.Int("out_channels")
	neck := graph.NewModule("MLANeck")
	var norms, projections, convs []*graph.Module
	for _, w := range widths {
		norms = append(norms, layerNorm(m.d, w))
		projections = append(projections, m.conv1(w, out))
		convs = append(convs, m.conv3(out, out))
	}
	neck.Child("norm", moduleList(norms...))
	mla := neck.Child("mla", graph.NewModule("MLAModule"))
	mla.Child("channel_proj", moduleList(projections...))
	mla.Child("feat_extract", moduleList(convs...))
	mla.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		n := len(in)
		feats, mids, outs := make([]*graph.Tensor, n), make([]*graph.Tensor, n), make([]*graph.Tensor, n)
		for i, x := range in {
			feats[i] = f.Let("feat_list."+numbered(i), f.Call1(projections[i], x))
		}
		for i := range mids {
			mid := feats[n-1-i]
			if i > 0 {
				mid = f.Add(mids[i-1], mid)
			}
			mids[i] = f.Let("mid_list."+numbered(i), mid)
		}
		for i := range outs {
			outs[i] = f.Let("out_list."+numbered(i), f.Call1(convs[i], mids[i]))
		}
		return outs
	}
	neck.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		outs := make([]*graph.Tensor, len(in))
		for i, x := range in {
			outs[i] = f.Let("outs."+numbered(i), normedTokens(f, norms[i], x))
		}
		return letAll(f, "outs", f.Call(mla, outs...))
	}
	return neck
}

// rescales reads factors by which maps are resized, as multiples of a quarter.
func (c *Config) rescales(key string) []int64 {
	list, _ := c.values[key].([]any)
	var all []int64
	for _, v := range list {
		x, _ := v.(float64)
		switch x {
		case 0.25, 0.5, 1, 2, 4:
			all = append(all, int64(4*x))
		default:
			c.fields.Add("model.config."+key, v, "0.25, 0.5, 1, 2 or 4", "1")
		}
	}
	return all
}

// multilevelNeck is MultiLevelNeck: maps of one width at several sizes.
func (m mm) multilevelNeck(c *Config) *graph.Module {
	c.Only("type", "in_channels", "out_channels", "scales", "norm", "activation")
	widths, out, scales := c.Ints("in_channels"), c.Int("out_channels"), c.rescales("scales")
	neck := graph.NewModule("MultiLevelNeck")
	if len(scales) != len(widths) {
		c.fields.Add("model.config.scales", len(scales), "as many as in_channels has widths", "")
		return neck
	}
	// Without a norm the convolutions have a bias, and there is no activation.
	conv := func(in, kernel int64) *graph.Module {
		return conv2d(m.d, in, out, convShape{kernel: kernel, padding: kernel / 2, bias: true})
	}
	var laterals, convs []*graph.Module
	for _, w := range widths {
		laterals, convs = append(laterals, conv(w, 1)), append(convs, conv(out, 3))
	}
	neck.Child("lateral_convs", moduleList(laterals...))
	neck.Child("convs", moduleList(convs...))
	neck.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x, outs := make([]*graph.Tensor, len(in)), make([]*graph.Tensor, len(in))
		for i, l := range laterals {
			x[i] = f.Let("inputs."+numbered(i), f.Call1(l, in[i]))
		}
		for i, conv := range convs {
			resized := x[i]
			if scales[i] != 4 { // the same size is the tensor itself
				resized = f.Interpolate(x[i], x[i].Shape.D[2]*scales[i]/4, x[i].Shape.D[3]*scales[i]/4)
			}
			resized = f.Let("x_resize", resized)
			outs[i] = f.Let("outs."+numbered(i), f.Call1(conv, resized))
		}
		return outs
	}
	return neck
}

// pyramidNeck is Feature2Pyramid: maps of one size made a pyramid by transposed
// convolutions and pooling.
func (m mm) pyramidNeck(c *Config) *graph.Module {
	c.Only("type", "embed_dim", "rescales", "norm")
	width, scales := c.Int("embed_dim"), c.rescales("rescales")
	neck := graph.NewModule("Feature2Pyramid")
	double := func() *graph.Module {
		return convolution(m.d, width, width, square(2), graph.Conv{Stride: square(2), Padding: square(0), Dilation: square(1), OutputPadding: square(0), Groups: 1, Transposed: true}, true)
	}
	var ops []*graph.Module
	for _, s := range scales {
		switch s {
		case 16:
			norm := batchNorm(m.d, width)
			synchronised(norm)
			ops = append(ops, neck.Child("upsample_4x", sequential(double(), norm, gelu(), double())))
		case 8:
			ops = append(ops, neck.Child("upsample_2x", sequential(double())))
		case 4:
			ops = append(ops, neck.Child("identity", identity()))
		case 2:
			ops = append(ops, neck.Child("downsample_2x", maxPool2d(2, 2, 0)))
		default:
			ops = append(ops, neck.Child("downsample_4x", maxPool2d(4, 4, 0)))
		}
	}
	neck.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		outs := make([]*graph.Tensor, len(in))
		for i, x := range in {
			outs[i] = f.Let("outputs."+numbered(i), f.Call1(ops[i], x))
		}
		return outs
	}
	return neck
}
