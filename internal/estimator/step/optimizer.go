package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/fault"
)

// Stepper is an optimizer with its state: Step is optimizer.step().
type Stepper interface {
	Step(r *Run)
}

// optimizerKey names an optimizer and whose code runs it.
type optimizerKey struct{ name, library, implementation string }

// optimizers lists the update rules.
func optimizers() map[optimizerKey]func(r *Run) Stepper {
	return map[optimizerKey]func(r *Run) Stepper{
		{"adamw", "torch", "foreach"}: func(*Run) Stepper { return &adamForeach{} },
	}
}

func newOptimizer(r *Run) (Stepper, error) {
	o := &r.Job.Training.Optimizer
	key := optimizerKey{o.Name, o.Library, o.Implementation}
	if make, ok := optimizers()[key]; ok {
		return make(r), nil
	}
	var fields fault.Fields
	fields.Add("training.optimizer", o.Name+" of "+o.Library+" ("+o.Implementation+")", "an optimizer the engine knows", "adamw")
	return nil, fields
}

// adamForeach is torch.optim.AdamW over lists of tensors.
type adamForeach struct {
	state map[*graph.Param][2]*graph.Tensor
}

var adamRule = &graph.Rule{Name: "_multi_tensor_adam", Source: "torch/optim/adam.py@v2.6.0"}

func (a *adamForeach) Step(r *Run) {
	if a.state == nil {
		a.state = map[*graph.Param][2]*graph.Tensor{}
		for _, p := range r.Params {
			like := func() *graph.Tensor { return r.M.Make(adamRule, graph.OptimizerState, p.DType, p.Shape) }
			a.state[p] = [2]*graph.Tensor{like(), like()}
		}
	}
	var roots []*graph.Tensor
	for _, p := range r.Params {
		roots = append(roots, r.M.Make(adamRule, graph.Temporaries, p.DType, p.Shape))
	}
	for _, t := range roots {
		r.M.Forget(t)
	}
}

func clipGradNorm(r *Run) {}
