package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// What lies on the card beside the trained model: encoders, a VAE, a critic, an
// averaged copy of the weights, an inference engine.

var (
	residentRule  = &graph.Rule{Name: "resident_module", Source: "training.resident_modules"}
	loadRule      = &graph.Rule{Name: "also_resident", Source: "training.load.also_resident"}
	inferenceRule = &graph.Rule{Name: "inference_engine", Source: "vllm/config.py:gpu_memory_utilization"}
	emaRule       = &graph.Rule{Name: "ema", Source: "torch/optim/swa_utils.py:AveragedModel"}
)

// largestPiece is the size in which a module known by its count alone is laid
// out: weights of a few tens of MiB each, as most are.
const largestPiece = 32 << 20

// place makes the weights of a module known by its count, in pieces.
func (r *Run) place(rule *graph.Rule, m spec.Resident) []*graph.Tensor {
	d := residentType(m.DType)
	var pieces []*graph.Tensor
	for left := m.Parameters; left > 0; {
		n := min(left, largestPiece/d.Size())
		pieces = append(pieces, r.M.Make(rule, graph.ResidentModules, d, graph.D(n)))
		left -= n
	}
	return pieces
}

// residentType is the type of a module's weights: fp32 where none is given.
func residentType(d spec.DType) graph.DType {
	switch d {
	case spec.BF16, spec.FP16:
		return DTypeOf(d)
	case "int8", "fp8":
		return graph.U8
	}
	return graph.F32
}

// loadBeside puts on the card what the job loads with the model. What is freed
// before the first step is freed as scripts do it: deleted when the model is
// there, and the cache emptied (diffusers/training_utils.py:free_memory).
func (r *Run) loadBeside(model func()) {
	l := r.Job.Training.Load
	if l == nil {
		model()
		return
	}
	var beside []*graph.Tensor
	for _, m := range l.AlsoResident {
		beside = append(beside, r.place(loadRule, m)...)
	}
	model()
	if enabled(l.FreedBeforeFirstStep) {
		forgetList(r.M, beside)
		r.M.EmptyCache()
	}
}

// settle puts on the card what stays there: resident modules, an averaged copy,
// an inference engine that shares the card.
func (r *Run) settle() {
	t := &r.Job.Training
	for _, m := range t.ResidentModules {
		r.place(residentRule, m)
		if m.RunsInStep {
			r.doubt(Doubt{
				Code: "resident_activations", Path: "training.resident_modules", Error: residentError,
				Text: "What " + m.Name + " keeps while it runs is not known from its count of parameters and is not counted.",
			})
		}
	}
	if t.Conditioning == "in-step" && len(t.ResidentModules) == 0 {
		r.doubt(Doubt{
			Code: "conditioning_not_counted", Path: "training.conditioning", Error: residentError,
			Text: "Latents and text embeddings are made inside the step, but the encoders are not counted: name them in training.resident_modules.",
		})
	}
	if g := t.Generation; g != nil && g.EngineMemoryFraction > 0 {
		r.M.Make(inferenceRule, graph.ResidentModules, graph.U8, graph.D(int64(g.EngineMemoryFraction*float64(r.M.Device.Total))))
	}
	if t.EMA != nil {
		r.ema = newEMA(r)
	}
	if t.GradsResident {
		for _, p := range r.Params {
			p.Grad = r.M.Make(residentRule, graph.Gradients, p.DType, p.Shape)
		}
	}
}

// residentError is the engine's error where a module of unknown shape runs.
const residentError = 0.05

// weightAverage is an averaged copy of the weights, updated after every step
// (torch.optim.swa_utils.AveragedModel with an exponential average, timm's
// ModelEmaV3, diffusers' EMAModel).
type weightAverage struct {
	copies []*graph.Tensor
	host   int64
}

// newEMA copies every parameter, to the card or the host.
func newEMA(r *Run) *weightAverage {
	e := &weightAverage{}
	s := r.Job.Training.EMA
	for _, p := range r.Net.Root.Parameters() {
		d := p.DType
		if s.DType != "" {
			d = DTypeOf(s.DType)
		}
		if s.Device == "cpu" {
			e.host += p.Numel() * d.Size()
			continue
		}
		e.copies = append(e.copies, r.M.Make(emaRule, graph.ResidentModules, d, p.Shape))
	}
	return e
}

// update is s_param.sub_(one_minus_decay * (s_param - param)), parameter by
// parameter.
func (e *weightAverage) update(r *Run) {
	r.noGrad(func(f *graph.Frame) {
		for _, c := range e.copies {
			f.Drop(f.MulScalar(f.Clone(c)))
		}
	})
}
