package graph

var chunkedLogProbRule = &Rule{Name: "ChunkedLogProbFunction", Source: "trl/kernels/chunked_logprob.py@v1.16.0"}

// The tile of logits that TRL's head works on: tokens and columns of the
// vocabulary.
const (
	trlTileTokens  = 4096
	trlTileColumns = 32768
)

// logProbHead is TRL's head over hidden states [tokens, hidden] and a weight
// [vocabulary, hidden], in progress.
type logProbHead struct {
	*Machine
	hidden, weight, targets *Tensor
	compute                 DType
}

// TokenScores says what TRL's head gives of every token beside its
// log-probability.
type TokenScores struct {
	Entropy    bool // of its distribution
	MeanLogits bool
	Top        bool // whether it is the likeliest
}

// ChunkedLogProb gives the log-probability of every target and what else is
// asked for (nil where it is not: the entropy, the mean of the logits, whether it
// is the likeliest), without logits: a tile of them at a time, made again in
// backward. It keeps its arguments and two statistics of every token.
func (f *Frame) ChunkedLogProb(hidden, weight, targets *Tensor, wanted TokenScores) (logProbs, entropy, mean, top *Tensor) {
	n := f.record(chunkedLogProbRule, hidden, weight)
	h := &logProbHead{Machine: f.Machine, hidden: hidden, weight: weight, targets: targets, compute: hidden.DType}
	if d, casting := f.Autocasting(); casting {
		h.compute = d
	}
	var logZ *Tensor
	f.NoGrad(func() { logProbs, entropy, mean, top, logZ = h.forward(wanted) })
	f.save(n, hidden, weight, targets, logZ)
	if entropy != nil {
		f.save(n, entropy)
	}
	if n != nil {
		n.apply = func(n *Node, dOut []*Tensor) Grads { return h.backward(n) }
	}
	f.output(n, logProbs, 0)
	if entropy != nil {
		f.output(n, entropy, 1)
	}
	f.release(logZ)
	f.consume(hidden, targets)
	for _, t := range []*Tensor{logProbs, entropy, mean, top} {
		if t != nil {
			f.produce(t)
		}
	}
	return logProbs, entropy, mean, top
}

// forward folds every tile into seven statistics of a token, and those into
// what is returned.
func (h *logProbHead) forward(wanted TokenScores) (logProbs, entropy, mean, top, logZ *Tensor) {
	rows := D(h.hidden.Shape.D[0])
	var statistics [7]*Tensor
	for i := range statistics {
		statistics[i] = h.alloc(rows, F32)
	}
	locals := h.tiles(false, 1)
	perToken := func(d DType) *Tensor { return h.alloc(rows, d) }
	logSum := perToken(F32)
	logZ = perToken(F32)
	h.release(logSum)
	logProbs = perToken(F32)
	if wanted.Entropy {
		quotient := perToken(F32)
		entropy = perToken(F32)
		h.release(quotient)
	}
	if wanted.MeanLogits {
		mean = perToken(F32)
	}
	if wanted.Top {
		likely, only := perToken(Bool), perToken(Bool)
		top = perToken(Bool)
		h.letGo(likely, only)
	}
	h.letGo(append(locals, statistics[:]...)...)
	return logProbs, entropy, mean, top, logZ
}

// tiles makes the logits of every tile in one buffer, with so many products for
// each. The weight's part has a name of its own, bound until the next one is
// there, or is dropped after the first. It returns what its caller's names still
// hold.
func (h *logProbHead) tiles(named bool, products int) []*Tensor {
	tokens, vocabulary := h.hidden.Shape.D[0], h.weight.Shape.D[0]
	old := h.cat
	h.cat = Logits
	buffer := h.alloc(D(min(tokens, trlTileTokens), trlTileColumns), h.compute)
	h.cat = old
	var hidden, weight *Tensor
	for from := int64(0); from < tokens; from += trlTileTokens {
		chunk := h.part(h.hidden, from, min(tokens, from+trlTileTokens))
		h.letGo(hidden)
		hidden = chunk
		for column := int64(0); column < vocabulary; column += trlTileColumns {
			columns := h.part(h.weight, column, min(vocabulary, column+trlTileColumns))
			h.letGo(weight)
			weight = columns
			for range products {
				h.gemm()
				h.multiplies(h.compute, 1, hidden.Shape.D[0], hidden.Shape.D[1], weight.Shape.D[0])
			}
			if !named {
				h.letGo(weight)
				weight = nil
			}
		}
	}
	return []*Tensor{hidden, weight, buffer}
}

// part is t[from:to].to(compute_dtype), owned by the caller.
func (h *logProbHead) part(t *Tensor, from, to int64) *Tensor {
	shape := t.Shape.With(0, to-from)
	if t.DType == h.compute {
		v := h.alias(t)
		v.Shape, v.view = shape, true
		return v
	}
	return h.alloc(shape, h.compute)
}

// backward makes every tile again and adds its products to gradients in fp32.
func (h *logProbHead) backward(n *Node) Grads {
	var g Grads
	products := 1
	for i := range 2 {
		if n.wants(i) {
			g[i] = h.alloc(n.saved[i].Shape, F32)
			products++
		}
	}
	locals := h.tiles(true, products)
	for i, t := range g[:2] {
		if t != nil && n.saved[i].DType != F32 {
			g[i] = h.alloc(t.Shape, n.saved[i].DType)
			locals = append(locals, t)
		}
	}
	h.letGo(locals...)
	return g
}
