package estimator_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// Bytes of optimizer state a parameter, on a bf16 Llama: from what each library
// says it keeps.
func TestOptimizerStatePerParameter(t *testing.T) {
	for _, c := range []struct {
		name string
		o    spec.Optimizer
		want float64
		near float64 // code books, small tensors, and what is not quantised
	}{
		{"adamw", spec.Optimizer{Name: "adamw"}, 4, 0.01},
		{"nadam", spec.Optimizer{Name: "nadam"}, 4, 0.01},
		{"radam", spec.Optimizer{Name: "radam"}, 4, 0.01},
		{"adadelta", spec.Optimizer{Name: "adadelta"}, 4, 0.01},
		{"adamax", spec.Optimizer{Name: "adamax"}, 4, 0.01},
		{"muon on matrices, adamw on embeddings", spec.Optimizer{Name: "muon"}, 2 + 2*0.40, 0.03}, // 16.8 M of 42 M parameters
		{"ademamix of 8 bits", spec.Optimizer{Name: "ademamix", StateBits: 8}, 3 + 3*4./256, 0.01},
		{"torchao 8 bits", spec.Optimizer{Name: "adamw", Library: "torchao"}, 2 + 2*4./256, 0.01},
		{"torchao 4 bits", spec.Optimizer{Name: "adamw", StateBits: 4}, 1 + 2*4./128, 0.01},
		{"torchao on the host", spec.Optimizer{Name: "adamw", CPUOffload: true}, 0, 0.01},
		{"prodigy", spec.Optimizer{Name: "prodigy"}, 8, 0.01},
		{"sophia", spec.Optimizer{Name: "sophia"}, 4, 0.01},
		{"adam-mini", spec.Optimizer{Name: "adam-mini"}, 2, 0.02},
		{"lion of lion-pytorch", spec.Optimizer{Name: "lion", Library: "lion-pytorch"}, 2, 0.01},
		{"AdamW of Apex, in fp32", spec.Optimizer{Name: "adamw", Library: "apex", Implementation: "fused"}, 8, 0.01},
		{"AdamW of old transformers", spec.Optimizer{Name: "adamw", Library: "transformers"}, 4, 0.01},
		{"schedule-free AdamW", spec.Optimizer{Name: "adamw", Library: "schedulefree"}, 4, 0.01},
		{"schedule-free SGD", spec.Optimizer{Name: "sgd", Library: "schedulefree"}, 2, 0.01},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := tiny(t, "", "")
			job.Training.Optimizer = c.o
			e, err := estimator.Run(job, a100, prior)
			require.NoError(t, err)
			got := 0.0
			for _, p := range e.PerParameter {
				if p.Term == "optimizer" {
					got = p.Bytes
				}
			}
			require.InDelta(t, c.want, got, c.near)
		})
	}
}

// An optimizer that steps in backward keeps no more than a few gradients; so
// does one that takes them to the host, which needs memory there.
func TestGradientsThatLeaveInBackward(t *testing.T) {
	gradients := func(o spec.Optimizer, offload ...string) (*estimator.Estimate, float64) {
		job := tiny(t, "", "")
		job.Training.Optimizer, job.Parallelism.Offload = o, offload
		e, err := estimator.Run(job, a100, prior)
		require.NoError(t, err)
		for _, p := range e.PerParameter {
			if p.Term == "gradients" {
				return e, p.Bytes
			}
		}
		return e, 0
	}
	whole, all := gradients(spec.Optimizer{Name: "adamw"})
	require.InDelta(t, 2, all, 0.01)
	fused, some := gradients(spec.Optimizer{Name: "adamw", InBackward: true})
	require.Less(t, some, 0.5)
	require.Less(t, fused.Peak.Allocated, whole.Peak.Allocated)
	host, kept := gradients(spec.Optimizer{Name: "adamw", CPUOffload: true})
	require.InDelta(t, 2, kept, 0.01)
	require.InDelta(t, 8*float64(host.Parameters.Total), float64(host.HostMemory), 1e6)
	_, left := gradients(spec.Optimizer{Name: "adamw", CPUOffload: true}, "gradients")
	require.Less(t, left, 0.5)
}

// GaLore and APOLLO keep moments of the rank they project to.
func TestProjectedOptimizers(t *testing.T) {
	state := func(name string, rank int) units.Bytes {
		job := tiny(t, "", "")
		job.Training.Optimizer = spec.Optimizer{Name: name, Rank: rank}
		e, err := estimator.Run(job, a100, prior)
		require.NoError(t, err)
		for _, p := range e.PerParameter {
			if p.Term == "optimizer" {
				return units.Bytes(p.Bytes * float64(e.Parameters.Trainable))
			}
		}
		return 0
	}
	// Seven matrices a layer: 4 of 1024 x 1024, 3 of 1024 x 2816. Basis and two moments.
	perRank := int64(2 * 2 * (4*(1024+2*1024) + 3*(1024+2*2816)))
	for _, name := range []string{"galore_adamw", "apollo_adamw"} {
		require.InDelta(t, 64*perRank, int64(state(name, 128)-state(name, 64)), 1e5, name)
	}
}
