package model

import "memplan/internal/estimator/graph"

// unet is UNet: an encoder that pools between its stages, and a decoder that
// joins each stage's result with what comes from below
// (mmseg/models/backbones/unet.py, utils/up_conv_block.py@v0.30.0).
func (m mm) unet(c *Config) *graph.Module {
	c.Only("type", "in_channels", "base_channels", "num_stages", "strides", "enc_num_convs", "dec_num_convs", "downsamples", "enc_dilations",
		"dec_dilations", "norm", "activation", "upsample_cfg")
	n := int(c.IntOr(5, "num_stages"))
	width := func(i int) int64 { return c.IntOr(64, "base_channels") << i }
	down, up := c.PerLevel(2, n, "enc_num_convs"), c.PerLevel(2, n-1, "dec_num_convs")
	net := graph.NewModule("UNet")
	encoder, decoder := net.Child("encoder", graph.NewModule("ModuleList")), net.Child("decoder", graph.NewModule("ModuleList"))
	in := c.IntOr(3, "in_channels")
	convs := func(in, out, count int64) *graph.Module {
		var all []*graph.Module
		for range count {
			all = append(all, m.conv3(in, out))
			in = out
		}
		block := graph.NewModule("BasicConvBlock")
		block.Child("convs", sequential(all...))
		chain(block)
		return block
	}
	for i := range n {
		stage := []*graph.Module{convs(in, width(i), down[i])}
		if i > 0 {
			stage = append([]*graph.Module{maxPool2d(2, 2, 0)}, stage...)
			decoder.Child(numbered(i-1), m.upConvBlock(width(i), width(i-1), convs(2*width(i-1), width(i-1), up[i-1])))
		}
		encoder.Child(numbered(i), sequential(stage...))
		in = width(i)
	}
	net.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := in[0]
		skips := make([]*graph.Tensor, n)
		for i, e := range encoder.Children {
			x = f.Let("x", f.Call1(e, x))
			skips[i] = f.Let("enc_outs."+numbered(i), x)
		}
		outs := []*graph.Tensor{x}
		for i := n - 2; i >= 0; i-- {
			x = f.Let("x", f.Call1(decoder.Children[i], skips[i], x))
			outs = append(outs, f.Let("dec_outs."+numbered(i), x))
		}
		return outs
	}
	return net
}

// upConvBlock is UpConvBlock with InterpConv: twice the size, half the width,
// joined with the encoder's result.
func (m mm) upConvBlock(in, skip int64, convs *graph.Module) *graph.Module {
	block := graph.NewModule("UpConvBlock")
	block.Child("conv_block", convs)
	up := block.Child("upsample", sequential(upsample(2), m.conv1(in, skip)))
	block.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
		x := f.Let("x", f.Call1(up, in[1]))
		out := f.Let("out", f.Cat(1, in[0], x))
		return one(f.Let("out", f.Call1(convs, out)))
	}
	return block
}
