package step

import (
	"fmt"

	"memplan/internal/estimator/model"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// unruledError is the least relative error of the engine where operations have
// no rule: as wide as for a job of a kind that was never measured.
const unruledError = 0.05

// doubtGraph says which operations of a graph were guessed, and which loss was.
func (r *Run) doubtGraph() {
	if r.Net.Unruled == nil {
		return
	}
	for _, u := range r.Net.Unruled(int64(r.Job.Training.MicroBatchSize)) {
		d := Doubt{Code: "unknown_operation", Path: "model.graph", Bytes: units.Bytes(u.Bytes), Error: unruledError}
		d.Text = fmt.Sprintf("No rule is known for %s, which runs %d times a forward: its results are taken to be kept for the backward, and what its kernels need beside them is not counted.", u.Op, u.Times)
		if u.Differs {
			d.Text = fmt.Sprintf("What %s makes, %d times a forward, has another shape here than in the graph.", u.Op, u.Times)
		}
		r.doubt(d)
	}
	if loss := r.Net.AssumedLoss; loss != "" {
		r.doubt(Doubt{Code: "assumed_loss", Path: "model.graph.loss", Text: "The graph names no loss and ends with no scalar: " + lossWords[loss] + " is counted. Export it with loss=… to have it as it is."})
	}
}

// refuseGraph turns what goes wrong while a graph runs into an error of the job:
// a program that somebody else wrote may ask for what no rule allows.
func refuseGraph(err *error) {
	if r := recover(); r != nil {
		*err = fault.Fields{{Path: "model.graph", Got: fmt.Sprint(r), Want: "operations whose arguments go together"}}
	}
}

// lossWords say what a loss of a graph's result is.
var lossWords = map[string]string{model.ClassLoss: "cross entropy with a class for every position", model.SumLoss: "the sum of its first result"}
