package graph

var syncBatchNormRule = &Rule{Name: "SyncBatchNorm", Source: "torch/nn/modules/_functions.py:SyncBatchNorm@v2.6.0", Backward: syncBatchNormBackward}

// SyncBatchNorm is nn.SyncBatchNorm over several ranks: the statistics of all of
// them are gathered before the batch is normalised. It keeps its input and its
// scale, mean and deviation of each channel, and the ranks' counts.
func (f *Frame) SyncBatchNorm(x, weight, bias *Tensor, ranks int64) *Tensor {
	n := f.record(syncBatchNormRule, x, weight, bias)
	dense := f.inFormat(x, x.isChannelsLast())
	channels := x.Shape.D[1]
	mean, deviation := f.alloc(D(channels), F32), f.alloc(D(channels), F32)
	if x.normsByChannel() {
		f.normStaging(x, 4)
	}
	count := f.alloc(D(1), F32)
	combined := f.alloc(D(2*channels+1), F32)
	gathered := f.alloc(D(ranks, 2*channels+1), F32)
	f.release(combined)
	counts := f.alloc(D(ranks, 1), F32)
	means, deviations := f.alloc(D(ranks, channels), F32), f.alloc(D(ranks, channels), F32)
	f.letGo(gathered, count, mean, deviation)
	mean, deviation = f.alloc(D(channels), F32), f.alloc(D(channels), F32)
	whole := f.alloc(D(ranks, 1), I32)
	f.save(n, dense, weight, mean, deviation, whole)
	out := f.allocLike(dense, x.DType)
	f.output(n, out, 0)
	f.letGo(whole, mean, deviation, means, deviations, counts, dense)
	f.consume(x)
	return f.produce(out)
}

// syncBatchNormBackward sums over its own batch, then over the ranks.
func syncBatchNormBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	x, weight := n.saved[0], n.saved[1]
	dy := m.inFormat(dOut[0], dOut[0].isChannelsLast())
	sums := [2]*Tensor{m.alloc(weight.Shape, F32), m.alloc(weight.Shape, F32)}
	var g Grads
	for i := 1; i <= 2; i++ {
		if n.wants(i) {
			g[i] = m.alloc(weight.Shape, weight.DType)
		}
	}
	if x.normsByChannel() && dy.normsByChannel() {
		m.normStaging(x, 2)
	}
	if n.wants(0) {
		combined := m.alloc(D(2*weight.Shape.D[0]), F32)
		g[0] = m.allocLike(x, x.DType)
		m.release(combined)
	}
	m.letGo(sums[0], sums[1], dy)
	return g
}
