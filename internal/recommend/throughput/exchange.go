package throughput

import (
	"slices"

	"memplan/internal/estimator/spec"
)

// exchange prices what a rank sends, copies and updates in a step.
type exchange struct {
	job              *spec.Job
	rates            Rates
	micros           float64
	compute          float64 // seconds of a micro batch
	backward         float64 // of which in backward
	total, trainable int64   // parameters
	stored, trained  int64   // bytes of them
}

// hidden is how much of the computing can run beside communication.
const hidden = 0.75

// seconds is the communication that computing does not hide, of all kinds.
func (e *exchange) seconds() float64 {
	return e.data() + e.tensor() + e.context() + e.pipeline()
}

// split is the part of the model that a rank of tensor and pipeline holds.
func (e *exchange) split() float64 {
	p := &e.job.Parallelism
	return 1 / float64(max(1, p.Tensor)*max(1, p.Pipeline))
}

// wire is the bytes a second that ranks of a group reach: within a node, or
// through the network where the group is larger than one.
func (e *exchange) wire(ranks, apart int) float64 {
	node := e.job.Parallelism.GPUsPerNode
	if node == 0 {
		node = 8
	}
	if ranks*apart <= node {
		return e.rates.Link
	}
	// A ring or tree over nodes shares a node's network among its ranks.
	return min(e.rates.Link, e.rates.Network*float64(min(node, max(1, ranks))))
}

// perStage is what the start of one collective costs.
const perStage = 30e-6

// data is the exchange of data parallelism.
func (e *exchange) data() float64 {
	p := &e.job.Parallelism
	n := p.Data
	if n <= 1 {
		return 0
	}
	within := max(1, p.Tensor)
	ring := float64(n-1) / float64(n)
	bw := e.wire(n, within)
	gradients := float64(e.trained) * e.split()
	weights := float64(e.stored) * e.split()
	overlap := hidden * e.backward
	latency := perStage * 40 * max(1, float64(n)/64)
	switch p.Sharding {
	case "fsdp", "zero3":
		return e.sharded(ring, bw, weights, gradients, latency)
	case "zero1", "zero2":
		reduce := ring * gradients / bw
		times := 1.0
		if p.Sharding == "zero2" {
			times = e.micros
		}
		return max(0, times*(reduce-overlap)) + times*latency/2 + ring*gradients/bw // the updated weights come back at the end
	}
	return max(0, 2*ring*gradients/bw-overlap) + latency/4 + 0.1*2*ring*gradients/bw
}

// sharded is fully sharded parameters: every micro batch gathers them for
// forward and again for backward, and scatters gradients.
func (e *exchange) sharded(ring, bw, weights, gradients, latency float64) float64 {
	p, t := &e.job.Parallelism, &e.job.Training
	gathered := weights
	if mixed := t.Precision.Mixed(); (mixed != "" || t.Precision == spec.PrecisionFP8Mixed) && t.WeightsDType == spec.FP32 && t.Quantization == nil {
		gathered /= 2
	}
	if t.FP8 != nil && t.FP8.AllGather {
		gathered /= 2
	}
	gathers := 2.0
	if o := p.FSDP; o != nil && (o.Strategy == "SHARD_GRAD_OP" || o.ReshardAfterForward != nil && !*o.ReshardAfterForward) {
		gathers = 1
	}
	shard := ring
	if p.Replicate > 1 {
		bw = max(bw, e.rates.Link)
	}
	busy := (gathers*gathered + gradients) * shard / bw
	return e.micros * (max(0, busy-hidden*e.compute) + 0.08*busy + latency)
}

// activation is the bytes of a micro batch's hidden states in 16 bits.
func (e *exchange) activation() float64 {
	t := &e.job.Training
	return 2 * float64(max(1, t.MicroBatchSize)) * float64(max(1, t.SequenceLength)) * e.number("hidden_size", "n_embd", "d_model") / float64(max(1, e.job.Parallelism.Context))
}

// number reads the first of some keys of the model's configuration.
func (e *exchange) number(keys ...string) float64 {
	for _, k := range keys {
		if n, ok := e.job.Model.Config[k].(float64); ok {
			return n
		}
	}
	return 0
}

func (e *exchange) layers() float64 { return e.number("num_hidden_layers", "n_layer", "n_layers") }

// tensor is two all-reduces of the hidden states a layer forward and two
// backward, and the forward's again where it is recomputed (Shoeybi et al. 2019,
// section 3); nothing but asynchronous products hides them.
func (e *exchange) tensor() float64 {
	p := &e.job.Parallelism
	if p.Tensor <= 1 {
		return 0
	}
	times := 4.0
	if e.job.Training.Checkpointing.Mode == "full" {
		times = 6
	}
	ring := 2 * float64(p.Tensor-1) / float64(p.Tensor)
	busy := times * e.layers() / float64(max(1, p.Pipeline)) * (ring*e.activation()/e.wire(p.Tensor, 1) + perStage)
	if p.AsyncTensor {
		busy *= 0.4
	}
	return e.micros * busy
}

// context is the exchange of keys and values between the parts of a sequence.
func (e *exchange) context() float64 {
	p := &e.job.Parallelism
	if p.Context <= 1 {
		return 0
	}
	groups := e.number("num_key_value_heads") / max(1, e.number("num_attention_heads", "n_head"))
	if groups == 0 {
		groups = 1
	}
	bytes := 2 * groups * e.activation() * float64(p.Context-1)
	busy := 3 * e.layers() / float64(max(1, p.Pipeline)) * (bytes/e.wire(p.Context, max(1, p.Tensor)) + perStage)
	return e.micros * (max(0, busy-0.3*e.compute) + 0.1*busy)
}

// pipeline is the hidden states from stage to stage.
func (e *exchange) pipeline() float64 {
	p := &e.job.Parallelism
	if p.Pipeline <= 1 {
		return 0
	}
	each := e.activation()/e.wire(p.Pipeline, max(1, p.Tensor)*max(1, p.Data)) + perStage
	return e.micros * 2 * float64(max(1, p.VirtualPipeline)) * each
}

// offload is what goes over the bus to the host, and Adam's pass there over its
// state, which a host's memory feeds at some 40 gigabytes a second and rank.
func (e *exchange) offload() float64 {
	p, t := &e.job.Parallelism, &e.job.Training
	shard := 1.0
	if p.Sharding != "ddp" && p.Sharding != "none" && p.Sharding != "" {
		shard = float64(max(1, p.Data))
	}
	var s float64
	on := func(what string) bool { return slices.Contains(p.Offload, what) }
	if on("parameters") {
		s += e.micros * max(0, 2*float64(e.stored)*e.split()/shard/e.rates.Host-0.3*e.compute)
		s += e.micros * 0.5 * float64(e.stored) * e.split() / shard / e.rates.Host
	}
	if on("gradients") || on("optimizer") {
		s += float64(e.trained) * e.split() / shard / e.rates.Host
	}
	if on("optimizer") || t.Optimizer.CPUOffload {
		s += float64(e.trained)*e.split()/shard/e.rates.Host + 16*float64(e.trainable)*e.split()/shard/(40*gb)
	}
	if on("activations") {
		s += e.micros * max(0, 2*e.activation()*e.layers()/e.rates.Host-0.6*e.compute)
	}
	if t.Optimizer.Paged {
		s += 0.02 * e.compute
	}
	return s
}
