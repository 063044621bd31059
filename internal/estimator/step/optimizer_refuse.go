package step

import (
	"fmt"
	"slices"
	"strconv"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// fusedAdagradSince is the first torch whose fused Adagrad runs on CUDA.
var fusedAdagradSince = spec.Version{2, 8}

// refusals lists the settings that the optimizer's library refuses or that no
// rule here stands for.
func refusals(r *Run, k optimizerKey) fault.Fields {
	var fields fault.Fields
	o := &r.Job.Training.Optimizer
	refuseForms(&fields, r, k)
	if k.name == "adagrad" && k.implementation == "fused" && !r.M.Versions.Torch.AtLeast(fusedAdagradSince) {
		fields.Add("training.optimizer.implementation", "fused", "foreach or for-loop: this torch has no fused Adagrad on CUDA", "foreach")
	}
	refuseMomentum(&fields, o, k)
	refuseScaler(&fields, r, k)
	if k.library == "bitsandbytes" && oneOf(k.name, "sgd", "rmsprop", "adagrad") && r.wideHalf(o.StateBits) {
		fields.Add("training.optimizer", k, "adamw, adam or lion: bitsandbytes has no kernel of "+k.name+" for bf16 gradients and fp32 states", "adamw")
	}
	return fields
}

// refuseForms reports forms of an optimizer that have no rule.
func refuseForms(fields *fault.Fields, r *Run, k optimizerKey) {
	o := &r.Job.Training.Optimizer
	if bits := stateBits(o, k); o.StateBits != 0 && !slices.Contains(bits, o.StateBits) {
		fields.Add("training.optimizer.state_bits", o.StateBits, fmt.Sprint("one of ", bits, " with library "+k.library+" (8 also with bitsandbytes, 4 with torchao)"), strconv.Itoa(bits[0]))
	}
	if o.Paged && (k.library != "bitsandbytes" || !oneOf(k.name, "adamw", "adam", "lion", "ademamix")) {
		fields.Add("training.optimizer.paged", "true", "false, or adamw, adam, lion or ademamix of library bitsandbytes", "false")
	}
	if o.CPUOffload && k.library != "torchao" {
		fields.Add("training.optimizer.cpu_offload", "true", "false, or library torchao (other engines: parallelism.offload)", "false")
	}
	if o.InBackward {
		refuseInBackward(fields, r, k)
	}
	if o.StateDType != "" && o.StateDType != spec.FP32 && (k.library != "torchao" || o.StateDType != fp8State || o.StateBits == 4) {
		fields.Add("training.optimizer.state_dtype", string(o.StateDType), "unset (states have the optimizer's own type), or fp8 of library torchao", "")
	}
	if k.library == "torchao" && o.CPUOffload && (o.InBackward || !oneOf(k.name, "adamw")) {
		fields.Add("training.optimizer.cpu_offload", "true", "false, or adamw that steps after backward", "false")
	}
	if k.name == "lamb" && r.anyTrained(graph.BF16) {
		fields.Add("training.optimizer.name", "lamb", "another for bf16 parameters: Apex's takes fp16 and fp32", "adamw")
	}
	if k.name == "muon" && r.M.Versions.Torch.Before(muonSince) {
		fields.Add("training.optimizer.name", "muon", "another: torch has it since "+muonSince.String(), "adamw")
	}
}

// stateBits are the widths in which an optimizer can keep its state.
func stateBits(o *spec.Optimizer, k optimizerKey) []int {
	switch {
	case k.library == "bitsandbytes":
		return []int{32, 8}
	case k.library == "torchao" && !o.CPUOffload:
		return []int{8, 4}
	}
	return []int{32}
}

// refuseInBackward reports what a step inside backward excludes: the gradient is
// used up before the next micro batch, or a scaler, sees it.
func refuseInBackward(fields *fault.Fields, r *Run, k optimizerKey) {
	if n := r.Job.Training.GradAccumSteps; n > 1 {
		fields.Add("training.gradient_accumulation_steps", n, "1 with an optimizer that steps in backward", "1")
	}
	if r.scaling() {
		fields.Add("training.grad_scaler", "true", "false with an optimizer that steps in backward", "false")
	}
	if oneOf(k.name, "prodigy", "muon") || r.Job.Parallelism.Ranks() > 1 {
		fields.Add("training.optimizer.in_backward", "true", "false: "+k.name+" does not step parameter by parameter, or there are several ranks", "false")
	}
}

// refuseScaler reports gradients that torch's GradScaler does not unscale.
func refuseScaler(fields *fault.Fields, r *Run, k optimizerKey) {
	if !r.scaling() {
		return
	}
	if r.anyTrained(graph.BF16) {
		fields.Add("training.grad_scaler", "true", "false with bf16 gradients, which GradScaler cannot unscale", "false")
	}
	alone := k.implementation == "fused" && !enabled(r.Job.Training.GradClipping) // the kernel unscales
	if r.anyTrained(graph.F16) && !alone {
		fields.Add("training.grad_scaler", "true", "false with fp16 gradients, which GradScaler refuses to unscale", "false")
	}
}

// refuseMomentum reports a momentum the update rule cannot take.
func refuseMomentum(fields *fault.Fields, o *spec.Optimizer, k optimizerKey) {
	if o.Momentum != nil && !oneOf(k.name, "sgd", "rmsprop") {
		fields.Add("training.optimizer.momentum", *o.Momentum, "unset: "+k.name+" takes none", "")
	}
	if o.Nesterov && (k.name != "sgd" || momentum(o) == 0) {
		fields.Add("training.optimizer.nesterov", "true", "false, or sgd with a momentum above 0", "false")
	}
	if k.library == "bitsandbytes" && k.name == "sgd" && o.Momentum != nil && *o.Momentum == 0 {
		fields.Add("training.optimizer.momentum", 0, "above 0: bitsandbytes has no SGD without momentum", "0.9")
	}
}

// momentum is the optimizer's momentum, 0 if unset.
func momentum(o *spec.Optimizer) float64 {
	if o.Momentum == nil {
		return 0
	}
	return *o.Momentum
}

func oneOf(s string, all ...string) bool {
	for _, a := range all {
		if s == a {
			return true
		}
	}
	return false
}

// anyTrained reports whether a trained parameter has type d.
func (r *Run) anyTrained(d graph.DType) bool {
	for _, p := range r.Params {
		if p.DType == d {
			return true
		}
	}
	return false
}

// wideHalf reports whether a bf16 parameter gets fp32 states of bitsandbytes.
func (r *Run) wideHalf(bits int) bool {
	for _, p := range r.Params {
		if p.DType == graph.BF16 && bnbStateType(r, p, bits) == graph.F32 {
			return true
		}
	}
	return false
}
