package step

import (
	"fmt"
	"slices"
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// Liger's kernels, put on a model before the run as its
// _apply_liger_kernel_to_instance does: modules get another forward under the
// same pointers, and functions of the modeling file are replaced. Read from
// liger_kernel 0.8.5, transformers/monkey_patch.py.

// The names of the kernels in a job.
const (
	fusedRMSNorm      = "rms_norm"
	fusedSwiGLU       = "swiglu"
	fusedRope         = "rope"
	fusedCrossEntropy = "cross_entropy"
	fusedLinear       = "fused-linear" // a kind of loss
)

// ligerKernels lists, by model_type, the kernels that Liger has for the
// families that are run with them.
func ligerKernels() map[string][]string {
	llama := []string{fusedRMSNorm, fusedSwiGLU, fusedRope, fusedCrossEntropy, fusedLinear}
	return map[string][]string{
		"llama": llama, "mistral": llama, "qwen2": llama, "qwen3": llama,
		"granite": {fusedRMSNorm, fusedSwiGLU, fusedRope, fusedCrossEntropy}, // it scales its logits
	}
}

// usesLiger reports whether a job asks for any of them.
func usesLiger(t *spec.Training) bool { return len(t.FusedKernels) > 0 || t.Loss.Kind == fusedLinear }

// beyondLiger lists the kernels that are not run.
func beyondLiger(j *spec.Job, f *fault.Fields) {
	t := &j.Training
	if !usesLiger(t) {
		return
	}
	all := []string{fusedRMSNorm, fusedSwiGLU, fusedRope, fusedCrossEntropy}
	kind, _ := j.Model.Config["model_type"].(string)
	known, ok := ligerKernels()[kind]
	for i, k := range t.FusedKernels {
		path := fmt.Sprintf("training.fused_kernels[%d]", i)
		switch {
		case !slices.Contains(all, k):
			f.Add(path, k, "one of "+strings.Join(all, ", ")+" (others are not modelled)", fusedRMSNorm)
		case ok && !slices.Contains(known, k):
			f.Add(path, k, "one of "+strings.Join(known, ", ")+" for "+kind, known[0])
		}
	}
	switch {
	case kind == "":
	case !ok:
		f.Add("training.fused_kernels", kind, "a model of type "+names(ligerKernels())+" (not modelled for others)", "")
	case t.Loss.Kind == fusedLinear && !slices.Contains(known, fusedLinear):
		f.Add("training.loss", fusedLinear, "default: there is no such kernel for "+kind, "default")
	}
}

// ligerPatches are the functions that are replaced. The fused head takes the
// place of a fused cross-entropy.
func ligerPatches(t *spec.Training) model.Patches {
	var p model.Patches
	if slices.Contains(t.FusedKernels, fusedRope) {
		p.Rotary = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			q, k := f.LigerRope(in[0], in[1], in[2], in[3])
			return []*graph.Tensor{q, k}
		}
	}
	switch {
	case t.Loss.Kind == fusedLinear:
		p.LinearCrossEntropy = (*graph.Frame).LigerLinearCrossEntropy
	case slices.Contains(t.FusedKernels, fusedCrossEntropy):
		p.CrossEntropy = (*graph.Frame).LigerCrossEntropy
	}
	return p
}

// fuse gives norms and gated MLPs their fused forwards.
func fuse(r *Run) {
	t := &r.Job.Training
	norms, mlps := slices.Contains(t.FusedKernels, fusedRMSNorm), slices.Contains(t.FusedKernels, fusedSwiGLU)
	r.Net.Root.Walk(func(m *graph.Module) {
		switch {
		case norms && strings.HasSuffix(m.Class, "RMSNorm"):
			m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
				return []*graph.Tensor{f.LigerRMSNorm(in[0], m.Params[0].T())}
			}
		case mlps && strings.HasSuffix(m.Class, "MLP"):
			gate, up, down := m.Children[0], m.Children[1], m.Children[2]
			m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
				x := in[0]
				return []*graph.Tensor{f.Call1(down, f.LigerSwiGLU(f.Call1(gate, x), f.Call1(up, x)))}
			}
		}
	})
}
