package step

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Stepper is an optimizer with its state: Step is optimizer.step(). It reads
// the gradients and leaves them.
type Stepper interface {
	Step(r *Run)
}

// constructing is a Stepper that makes its state when it is constructed and
// not at its first step.
type constructing interface {
	Construct(r *Run)
}

// scaleAware is a Stepper that may take the gradient scaler's tensors into its
// own kernels (_step_supports_amp_scaling), so that nothing is unscaled before.
type scaleAware interface {
	takesScale() bool
}

// optimizerKey names an optimizer and whose code runs it. Only torch's have
// more than one implementation.
type optimizerKey struct{ name, library, implementation string }

// String is the key as a job would write it.
func (k optimizerKey) String() string {
	s := "{name: " + k.name + ", library: " + k.library
	if k.implementation != "" {
		s += ", implementation: " + k.implementation
	}
	return s + "}"
}

// optimizers lists the update rules.
func optimizers() map[optimizerKey]func(o *spec.Optimizer) Stepper {
	return map[optimizerKey]func(o *spec.Optimizer) Stepper{
		{"adamw", "torch", "foreach"}:         newAdam(adamForeach),
		{"adamw", "torch", "fused"}:           newAdam(adamFused),
		{"adamw", "torch", "for-loop"}:        newAdam(adamForLoop),
		{"adam", "torch", "foreach"}:          newAdam(adamForeach),
		{"adam", "torch", "fused"}:            newAdam(adamFused),
		{"adam", "torch", "for-loop"}:         newAdam(adamForLoop),
		{"sgd", "torch", "foreach"}:           newSGD(sgdForeach),
		{"sgd", "torch", "fused"}:             newSGD(sgdFused),
		{"sgd", "torch", "for-loop"}:          newSGD(sgdForLoop),
		{"rmsprop", "torch", "foreach"}:       newRMSprop(rmspropForeach),
		{"rmsprop", "torch", "for-loop"}:      newRMSprop(rmspropForLoop),
		{"adagrad", "torch", "foreach"}:       newAdagrad(adagradForeach),
		{"adagrad", "torch", "fused"}:         newAdagrad(adagradFused),
		{"adagrad", "torch", "for-loop"}:      newAdagrad(adagradForLoop),
		{"adafactor", "torch", "foreach"}:     newTorchAdafactor(true),
		{"adafactor", "torch", "for-loop"}:    newTorchAdafactor(false),
		{"adamw", deepSpeedLibrary, "fused"}:  newAdam(adamDeepSpeed),
		{"adam", deepSpeedLibrary, "fused"}:   newAdam(adamDeepSpeed),
		{"adafactor", "transformers", ""}:     newAdafactor,
		{"adamw", "bitsandbytes", ""}:         newBitsAndBytes(2),
		{"adam", "bitsandbytes", ""}:          newBitsAndBytes(2),
		{"lion", "bitsandbytes", ""}:          newBitsAndBytes(1),
		{"adadelta", "torch", "foreach"}:      newElementwise(adadeltaForeach),
		{"adadelta", "torch", "for-loop"}:     newElementwise(adadeltaForLoop),
		{"adamax", "torch", "foreach"}:        newElementwise(adamaxForeach),
		{"adamax", "torch", "for-loop"}:       newElementwise(adamaxForLoop),
		{"nadam", "torch", "foreach"}:         newElementwise(nadamForeach),
		{"nadam", "torch", "for-loop"}:        newElementwise(nadamForLoop),
		{"radam", "torch", "foreach"}:         newElementwise(radamForeach),
		{"radam", "torch", "for-loop"}:        newElementwise(radamForLoop),
		{"muon", "torch", "for-loop"}:         newMuon,
		{"ademamix", "bitsandbytes", ""}:      newAdEMAMix,
		{"adamw", "torchao", ""}:              newTorchAO,
		{"adam", "torchao", ""}:               newTorchAO,
		{"galore_adamw", "galore-torch", ""}:  newProjected(false),
		{"apollo_adamw", "apollo-torch", ""}:  newProjected(true),
		{"prodigy", "prodigyopt", ""}:         newProdigy,
		{"lion", "lion-pytorch", ""}:          newElementwise(lionPlain),
		{"adamw", "schedulefree", "foreach"}:  newElementwise(freeAdamForeach),
		{"adamw", "schedulefree", "for-loop"}: newElementwise(freeAdamForLoop),
		{"sgd", "schedulefree", "foreach"}:    newElementwise(freeSGD),
		{"sgd", "schedulefree", "for-loop"}:   newElementwise(freeSGD),
		{"adam", "apex", "fused"}:             newElementwise(apexAdam),
		{"adamw", "apex", "fused"}:            newElementwise(apexAdam),
		{"lamb", "apex", "fused"}:             newElementwise(apexLAMB),
		{"adamw", "transformers", "for-loop"}: newElementwise(oldAdamW),
		{"sophia", "sophia", ""}:              newElementwise(sophiaPlain),
		{"adam-mini", "adam-mini", ""}:        newAdamMini,
		{"sgd", "bitsandbytes", ""}:           newBitsAndBytes(1),
		{"rmsprop", "bitsandbytes", ""}:       newBitsAndBytes(1),
		{"adagrad", "bitsandbytes", ""}:       newBitsAndBytes(1),
	}
}

// newOptimizer makes the job's optimizer. It fails with fault.Fields where the
// combination does not exist, or where the libraries refuse it.
func newOptimizer(r *Run) (Stepper, error) {
	o := &r.Job.Training.Optimizer
	key := optimizerKey{o.Name, o.Library, o.Implementation}
	build, ok := optimizers()[key]
	if !ok {
		var fields fault.Fields
		fields.Add("training.optimizer", key, "one of "+knownOptimizers(), nearestOptimizer(key).String())
		return nil, fields
	}
	if fields := refusals(r, key); len(fields) > 0 {
		return nil, fields
	}
	r.doubtOptimizer(key)
	switch {
	case o.CPUOffload:
		return newOnHost(r), nil
	case o.InBackward:
		return inBackward{build(o)}, nil
	}
	return build(o), nil
}

// doubtOptimizer notes updates that are not known to the byte.
func (r *Run) doubtOptimizer(k optimizerKey) {
	switch {
	case r.Job.Training.Optimizer.CPUOffload:
	case k.library == "torchao":
		r.doubt(Doubt{
			Code: "compiled_optimizer", Path: "training.optimizer",
			Text: "torchao compiles its update: what its kernels keep between them is taken as two fp32 copies of one parameter, and the tuning of a first run, which takes 40 MiB and more, is not counted.",
		})
	case k.name == "galore_adamw":
		r.doubt(Doubt{
			Code: "svd_workspace", Path: "training.optimizer", Error: svdError,
			Text: "GaLore decomposes the gradient of each matrix now and then; the workspace that cuSOLVER takes for it is not counted.",
		})
	}
}

// svdError is the engine's error where a singular value decomposition is in the
// step: its workspace is of the order of a few copies of one gradient.
const svdError = 0.03

// UsualLibrary is the library that a job takes an optimizer from where it names
// none, and how that runs it; both empty for torch's own default.
func UsualLibrary(o *spec.Optimizer) (library, implementation string) {
	switch {
	case o.CPUOffload || o.StateBits == 4 || o.StateDType == fp8State:
		return "torchao", ""
	case o.StateBits == 8 || o.Paged:
		return "bitsandbytes", ""
	}
	usual := map[string][2]string{
		"lion": {"bitsandbytes", ""}, "ademamix": {"bitsandbytes", ""}, // torch has neither
		"adafactor": {"transformers", ""}, "muon": {"torch", "for-loop"}, "lamb": {"apex", "fused"},
	}
	if u, ok := usual[o.Name]; ok {
		return u[0], u[1]
	}
	for _, k := range sortedOptimizers() {
		if k.name == o.Name && k.library == "torch" {
			return "torch", ""
		}
	}
	for _, k := range sortedOptimizers() {
		if k.name == o.Name {
			return k.library, k.implementation
		}
	}
	return "torch", ""
}

// knownOptimizers lists the registry: adamw (torch foreach, fused, for-loop;
// bitsandbytes).
func knownOptimizers() string {
	forms := map[string][]string{}
	for _, k := range sortedOptimizers() {
		forms[k.name] = append(forms[k.name], strings.TrimSpace(k.library+" "+k.implementation))
	}
	var all []string
	for name, f := range forms {
		all = append(all, fmt.Sprintf("%s (%s)", name, strings.Join(f, ", ")))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func sortedOptimizers() []optimizerKey {
	var keys []optimizerKey
	for k := range optimizers() {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b optimizerKey) int { return cmp.Compare(a.String(), b.String()) })
	return keys
}

// nearestOptimizer is the known combination that shares most with want: the
// name above all, then the library, then the implementation.
func nearestOptimizer(want optimizerKey) optimizerKey {
	score := func(k optimizerKey) (n int) {
		for weight, same := range map[int]bool{4: k.name == want.name, 2: k.library == want.library, 1: k.implementation == want.implementation} {
			if same {
				n += weight
			}
		}
		return n
	}
	best := optimizerKey{"adamw", "torch", "foreach"}
	for _, k := range sortedOptimizers() {
		if score(k) > score(best) {
			best = k
		}
	}
	return best
}

// groups are the parameter groups the optimizer was given, of each the
// parameters that have a gradient.
func (r *Run) groups() [][]*graph.Param {
	groups := r.ParamGroups
	if groups == nil {
		groups = [][]*graph.Param{r.Params}
	}
	with := make([][]*graph.Param, len(groups))
	for i, g := range groups {
		for _, p := range g {
			if p.Grad != nil {
				with[i] = append(with[i], p)
			}
		}
	}
	return with
}

// stateLike makes a state tensor like a parameter, in type d.
func stateLike(r *Run, rule *graph.Rule, p *graph.Param, d graph.DType) *graph.Tensor {
	return r.M.Make(rule, graph.OptimizerState, d, p.Shape)
}
