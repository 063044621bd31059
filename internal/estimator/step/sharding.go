package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
)

// sharding is what keeps a part of every parameter on a rank and gathers them
// around the modules that use them.
type sharding interface {
	// load brings the model to the card.
	load(r *Run)
	// call runs the model's forward within the root's hooks.
	call(r *Run, f *graph.Frame, forward func() model.Outputs) model.Outputs
	// clip is clip_grad_norm_: the total norm, owned by the caller.
	clip(r *Run) *graph.Tensor
	// numel is the number of parameters the rank keeps.
	numel() int64
	// even reports whether every rank keeps as much: where not, the run is that
	// of the fullest.
	even() bool
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
