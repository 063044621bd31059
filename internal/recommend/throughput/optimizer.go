package throughput

// update is what an optimizer moves for each trained parameter, in passes over
// a number of the weight's size, of its gradient's, and of its state's.
type update struct {
	weights, gradients float64 // passes over them
	states             float64 // numbers of state
	passes             float64 // over each, a read and a write counted as two
}

// updates lists the update rules; of one that it lacks Adam's passes are taken.
func updates() map[string]update {
	return map[string]update{
		"adamw":     {weights: 2, gradients: 1, states: 2, passes: 2},
		"adam":      {weights: 2, gradients: 1, states: 2, passes: 2},
		"sgd":       {weights: 2, gradients: 1, states: 1, passes: 2},
		"lion":      {weights: 2, gradients: 1, states: 1, passes: 2},
		"adafactor": {weights: 4, gradients: 6, states: 0, passes: 0},
		"muon":      {weights: 4, gradients: 12, states: 1, passes: 2},
	}
}

// Passes that implementations make for one of a fused kernel: foreach computes
// with lists of tensors, an operation at a time.
const (
	foreachPasses = 3.0
	forLoopPasses = 3.5
	// States of few bits are looked up and searched for in tables, by a kernel for
	// each tensor, or by operations that a compiler joins.
	quantisedPasses = 4.0
)

// optimizer is the seconds of the update on a rank: traffic, and for a loop over
// parameters their launches.
func (e *exchange) optimizer() float64 {
	p, t := &e.job.Parallelism, &e.job.Training
	if t.OptimizerStep != nil && !*t.OptimizerStep {
		return 0
	}
	u, ok := updates()[t.Optimizer.Name]
	if !ok {
		u = updates()["adamw"]
	}
	n := float64(e.trainable) * e.split()
	if p.Sharding != "ddp" && p.Sharding != "none" && p.Sharding != "" {
		n /= float64(max(1, p.Data)) / float64(max(1, p.Replicate))
	}
	size := 4.0
	if e.trainable > 0 {
		size = float64(e.trained) / float64(e.trainable)
	}
	state := size
	if t.Optimizer.StateBits > 0 && t.Optimizer.StateBits < 32 {
		state = float64(t.Optimizer.StateBits) / 8
	}
	bytes := n * (u.weights*size + u.gradients*size + u.states*u.passes*state)
	if t.MasterWeights == "fp32" {
		bytes += n * 8
	}
	clipped := 0.0
	if t.GradClipping == nil || *t.GradClipping {
		clipped = n * 3 * size
	}
	times := 1.0
	switch t.Optimizer.Implementation {
	case "foreach":
		times = foreachPasses
	case "for-loop":
		times = forLoopPasses
	}
	if t.Optimizer.StateBits > 0 && t.Optimizer.StateBits < 32 {
		times = quantisedPasses
	}
	return (times*bytes + clipped) / (streamed * e.rates.Bandwidth)
}
