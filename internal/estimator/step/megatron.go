package step

import (
	"cmp"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// megatron is what Megatron-core wraps a model and its optimizer in: one buffer
// of gradients, which backward adds to, and parameters in fp32 that the
// optimizer steps, of which a data-parallel rank has all or, under the
// distributed optimizer, its share (megatron/core/distributed/,
// megatron/core/optimizer/ @core_v0.16.1).
type megatron struct {
	distributed bool
	width       graph.DType // of the gradients in the buffer
	ranges      []paramRange
	main        []mainParam
	gradCopies  bool // gradients are cast before the step
	share       int64
	scale       *graph.Tensor // of the loss
}

// paramRange is where a parameter lies in the buffer, in elements.
type paramRange struct {
	p        *graph.Param
	from, to int64
}

// mainParam is a parameter, or this rank's share of it, as the optimizer sees
// it.
type mainParam struct {
	numel  int64
	states [2]*graph.Tensor
}

var (
	gradBufferRule   = &graph.Rule{Name: "_ParamAndGradBuffer", Source: "megatron/core/distributed/param_and_grad_buffer.py@core_v0.16.1"}
	mainParamRule    = &graph.Rule{Name: "main_param", Source: "megatron/core/optimizer/optimizer.py, distrib_optimizer.py@core_v0.16.1"}
	gatherObjectRule = &graph.Rule{Name: "all_gather_object", Source: "torch/distributed/distributed_c10d.py@v2.6.0"}
	megatronNorm     = &graph.Rule{Name: "get_grad_norm_fp32", Source: "megatron/core/optimizer/clip_grads.py@core_v0.16.1"}
	rotaryTableRule  = &graph.Rule{Name: "RotaryEmbedding", Source: "megatron/core/models/common/embeddings/rotary_pos_embedding.py@core_v0.16.1"}
)

// newMegatron returns nil where another trainer runs the job.
func newMegatron(r *Run) *megatron {
	if r.Job.Runtime.Trainer != megatronTrainer {
		return nil
	}
	width := graph.F32
	if d := r.Job.Training.GradientDType; d != "" {
		width = DTypeOf(d)
	}
	return &megatron{distributed: r.Job.Parallelism.Sharding == "zero1", width: width, gradCopies: width != graph.F32}
}

// load builds the stage on the card: linear layers are made there, norms and
// position embeddings are moved, in fp32, and the whole is cast. Then the
// buffers are made.
func (g *megatron) load(r *Run) {
	m := r.M
	m.Register(r.Net.Root)
	r.Net.Root.Walk(func(x *graph.Module) {
		m.InModule(x)
		switch x.Class {
		case "ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding":
			for _, p := range x.Params {
				if p.Tied == nil {
					m.Place(gradBufferRule, p, p.Numel())
				}
			}
		case "RotaryEmbedding":
			makeRotary(m, x.Buffers[0])
		}
	})
	m.ToDeviceIf(r.Net.Root, func(p *graph.Param) bool { return p.T() == nil })
	if d := DTypeOf(r.Job.Training.WeightsDType); d != graph.F32 {
		m.EachState(r.Net.Root, func(p *graph.Param) {
			if p.Tied == nil && p.Trained && p.DType == graph.F32 {
				m.Recast(p, d)
			}
		})
	}
	m.InModule(nil)
	g.buffers(r)
}

// doubts notes what is taken to run otherwise than the job says.
func (g *megatron) doubts(r *Run) {
	fuses := r.Job.Parallelism.Megatron == nil || enabled(r.Job.Parallelism.Megatron.BiasDropoutFusion)
	biased := false
	r.Net.Root.Walk(func(x *graph.Module) { biased = biased || x.Class == "RowParallelLinear" && len(x.Params) > 1 })
	if fuses && biased {
		r.doubt(Doubt{
			Code: "bias_dropout_fusion", Path: "parallelism.megatron.bias_dropout_fusion",
			Text: "Bias, dropout and residual are taken to run one after the other; the compiled kernel that joins them has fewer temporaries.",
		})
	}
}

// makeRotary computes inv_freq on the card, where it stays.
func makeRotary(m *graph.Machine, inv *graph.Param) {
	m.Run(func(f *graph.Frame) {
		of := func() *graph.Tensor { return unnamed(f, rotaryTableRule, graph.F32, inv.Shape) }
		steps := of()
		f.Let("exponent", of())
		f.Drop(steps)
		f.Let("power", of())
		f.Drop(unnamed(f, rotaryTableRule, graph.I64, graph.D()))
		f.Del("exponent")
		f.Let("reciprocal", of())
		m.Adopt(inv, f.Own(of()))
	})
}

// padded is n rounded up to a multiple.
func padded(n, to int64) int64 { return (n + to - 1) / to * to }

// buffers lays the parameters out from the last to the first and makes the
// buffer of gradients, on a stream of its own; with the distributed optimizer
// one of parameters too, in which they live from then on.
func (g *megatron) buffers(r *Run) {
	m, n := r.M, int64(0)
	for i := len(r.Params) - 1; i >= 0; i-- {
		p := r.Params[i]
		if g.distributed {
			n = padded(n, 64)
		}
		g.ranges = append(g.ranges, paramRange{p, n, n + p.Numel()})
		n += p.Numel()
		if g.distributed && r.Net.Stage.Shared && p == sharedWeight(r) {
			n = padded(n, g.endOfBucket(r))
		}
	}
	if g.distributed {
		n = padded(n, g.endOfBucket(r))
	}
	g.share = n
	var flat *graph.Tensor
	m.OnStream(1, func() {
		if g.distributed {
			g.share = n / int64(r.Job.Parallelism.Data)
			flat = m.Make(gradBufferRule, graph.Parameters, DTypeOf(r.Job.Training.WeightsDType), graph.D(n))
		}
		m.Make(gradBufferRule, graph.Gradients, g.width, graph.D(n))
	})
	if g.distributed {
		for _, at := range g.ranges {
			m.Forget(at.p.Tensor)
			m.Over(flat, at.p)
		}
	}
	for _, p := range r.Params { // the hook adds what autograd made to the buffer
		p.Passes = true
		p.Hook = func(l *graph.Leaf) {
			m.Forget(l.Grad)
			l.Grad = nil
		}
	}
}

// endOfBucket is what the end of a bucket is padded to, so that every rank's
// share is as large and aligned.
func (g *megatron) endOfBucket(r *Run) int64 {
	d := int64(r.Job.Parallelism.Data)
	a, b := d, int64(128)
	for b != 0 {
		a, b = b, a%b
	}
	return d / a * 128
}

// sharedWeight is the embedding's weight on the first and the last stage.
func sharedWeight(r *Run) *graph.Param {
	var w *graph.Param
	r.Net.Root.Walk(func(x *graph.Module) {
		if x.Class == "VocabParallelEmbedding" || x.Name == "output_layer" {
			w = x.Params[0]
		}
	})
	return w
}

// construct makes the optimizer: parameters in fp32 where they are not already,
// first the matrices, which decay, then the rest.
func (g *megatron) construct(r *Run) {
	last := gatherObjects(r)
	half := DTypeOf(r.Job.Training.WeightsDType) != graph.F32
	last()
	g.scale = r.M.Make(mainParamRule, graph.OptimizerState, graph.F32, graph.D(1))
	for _, matrix := range []bool{true, false} {
		for _, at := range g.inOrder(r) {
			if (at.p.Shape.N > 1) != matrix {
				continue
			}
			from, to := at.from, at.to
			if g.distributed {
				from, to = max(from, 0), min(to, g.share)
			}
			if to > from {
				g.addMain(r, to-from, half, at.p.DType)
			}
		}
	}
	r.gathered = gatherObjects(r)
}

// inOrder are the parameters in the optimizer's order.
func (g *megatron) inOrder(r *Run) []paramRange {
	if g.distributed {
		return g.ranges
	}
	ordered := make([]paramRange, len(g.ranges))
	for i, at := range g.ranges {
		ordered[len(ordered)-1-i] = at
	}
	return ordered
}

func (g *megatron) addMain(r *Run, numel int64, half bool, d graph.DType) {
	if half {
		clone := r.M.Make(mainParamRule, graph.Temporaries, d, graph.D(numel))
		r.M.Make(mainParamRule, graph.MasterWeights, graph.F32, graph.D(numel))
		r.M.Forget(clone)
	}
	g.main = append(g.main, mainParam{numel: numel})
}

// gatherObjects is all_gather_object of the groups' keys, whose tensors die
// with the function, or when what it returns is called.
func gatherObjects(r *Run) (end func()) {
	const pickled = 46
	ranks := int64(r.Job.Parallelism.Ranks())
	var held []*graph.Tensor
	of := func(d graph.DType, n int64) *graph.Tensor {
		t := r.M.Make(gatherObjectRule, graph.Temporaries, d, graph.D(n))
		held = append(held, t)
		return t
	}
	passing := func(d graph.DType, n int64) { r.M.Forget(r.M.Make(gatherObjectRule, graph.Temporaries, d, graph.D(n))) }
	of(graph.U8, pickled)
	of(graph.I64, 1)
	of(graph.I64, ranks)
	passing(graph.I64, ranks) // flat
	for range ranks - 1 {
		passing(graph.Bool, 1) // the largest of the sizes
	}
	of(graph.U8, pickled*ranks)
	passing(graph.U8, pickled*ranks)
	return func() { forgetList(r.M, held) }
}

// Step is optimizer.step(): the norm, where gradients are clipped, and Adam in
// one kernel, whose states are made in the first step.
func (g *megatron) Step(r *Run) {
	m := r.M
	var grads []*graph.Tensor
	if g.gradCopies {
		for i := range g.main {
			grads = append(grads, m.Make(mainParamRule, graph.Gradients, graph.F32, graph.D(g.main[i].numel)))
		}
	}
	if enabled(r.Job.Training.GradClipping) {
		var norm []*graph.Tensor
		for _, d := range []graph.DType{graph.I32, graph.F32, graph.F32} {
			norm = append(norm, m.Make(megatronNorm, graph.Temporaries, d, graph.D(1)))
		}
		forgetList(m, norm)
	}
	for i := range g.main {
		p := &g.main[i]
		for k := range p.states {
			if p.states[k] == nil {
				p.states[k] = m.Make(mainParamRule, graph.OptimizerState, graph.F32, graph.D(p.numel))
			}
		}
	}
	forgetList(m, grads)
}

// megatronTrainer is the public name of the trainer.
const megatronTrainer = "megatron"

// ranksOf is how a job's model is spread, as seen from a stage of its pipeline.
func ranksOf(j *spec.Job, stage int) model.Ranks {
	p := &j.Parallelism
	ranks := model.Ranks{
		Tensor: int64(max(p.Tensor, 1)), Sequence: p.SequenceParallel && p.Tensor > 1, Stage: int64(stage), Stages: int64(max(p.Pipeline, 1)),
		FusedAccumulation: p.Megatron == nil || enabled(p.Megatron.GradientAccumulationFusion),
	}
	if c := &j.Training.Checkpointing; c.Mode == "full" {
		ranks.Recompute, ranks.RecomputeLayers = cmp.Or(c.Method, "uniform"), int64(max(1, c.NumLayers))
	}
	ranks.RecomputeCore = j.Training.Checkpointing.Mode == "selective"
	return ranks
}
