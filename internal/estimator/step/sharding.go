package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
)

// sharding is what keeps a part of every parameter on a rank and gathers them
// around the modules that use them.
type sharding interface {
	load(r *Run)                               // the model to the card
	call(r *Run, f *graph.Frame) model.Outputs // a forward
	clip(r *Run) *graph.Tensor                 // clip_grad_norm_: the total norm, owned by the caller
	numel() int64                              // parameters the rank keeps
}

// newSharding cuts the parameters of a job's model, or returns nil where they
// are whole. The run's parameters are the shards from here on.
func newSharding(r *Run) sharding {
	if s := newFSDP1(r); s != nil {
		return s
	}
	if s := newFSDP2(r); s != nil {
		return s
	}
	return nil
}
