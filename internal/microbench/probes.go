package microbench

import (
	"time"

	"memplan/internal/planner"
)

// probe is one micro-benchmark and how it runs.
type probe struct {
	planner.Probe
	script string   // the function of probe.py; "": the CUDA driver itself
	env    []string // of its process
	job    *job     // of a training probe
}

// lazily and eagerly are how CUDA loads kernels: when they are first used, which
// is the default since 11.7, or all at once.
const (
	lazily  = "CUDA_MODULE_LOADING=LAZY"
	eagerly = "CUDA_MODULE_LOADING=EAGER"
)

// probes are all there are, in the order they run: what others build on first.
var probes = append([]probe{
	{Probe: planner.Probe{Name: "driver", Text: "what the CUDA driver takes for a bare context, and how it hands out memory", Seconds: 2 * time.Second}},
	{Probe: planner.Probe{Name: "context_lazy", Text: "the context of a PyTorch process, kernels loaded when they are used", Seconds: 12 * time.Second}, script: "context", env: []string{lazily}},
	{Probe: planner.Probe{Name: "context_eager", Text: "the same with all kernels loaded at once", Seconds: 15 * time.Second}, script: "context", env: []string{eagerly}},
	{Probe: planner.Probe{Name: "workspace", Text: "workspaces of cuBLAS and cuBLASLt by type", Seconds: 10 * time.Second}, script: "workspace"},
	{Probe: planner.Probe{Name: "allocator", Text: "rounding and segments of the caching allocator", Seconds: 10 * time.Second}, script: "allocator"},
	{Probe: planner.Probe{Name: "saved_tensors", Text: "what autograd keeps of single operations", Seconds: 10 * time.Second}, script: "saved_tensors"},
	{Probe: planner.Probe{Name: "attention", Text: "temporaries of the attention kernels", Seconds: 10 * time.Second}, script: "attention"},
	{Probe: planner.Probe{Name: "convolution", Text: "cuDNN's workspaces, with benchmark mode and without", Seconds: 15 * time.Second}, script: "convolution"},
	{Probe: planner.Probe{Name: "optimizer", Text: "state and temporaries of optimizers", Seconds: 10 * time.Second}, script: "optimizer"},
	{Probe: planner.Probe{Name: "rates", Text: "rates of matrix products and of copies", Seconds: 15 * time.Second}, script: "rates"},
	{Probe: planner.Probe{Name: "nccl", Text: "what a communicator holds, where there are several cards", Seconds: 10 * time.Second}, script: "nccl"},
}, trainings()...)

// trainings are the probes of the training jobs.
func trainings() []probe {
	var all []probe
	for i := range jobs {
		j := &jobs[i]
		all = append(all, probe{
			Probe:  planner.Probe{Name: "train_" + j.name, Text: "training steps of " + j.text, Seconds: 18 * time.Second},
			script: "train", job: j,
		})
	}
	return all
}

// Probes returns every probe, in the order they run.
func Probes() []planner.Probe {
	all := make([]planner.Probe, len(probes))
	for i, p := range probes {
		all[i] = p.Probe
	}
	return all
}

// probeOf finds a probe by its name.
func probeOf(name string) (probe, bool) {
	for _, p := range probes {
		if p.Name == name {
			return p, true
		}
	}
	return probe{}, false
}
