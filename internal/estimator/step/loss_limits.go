package step

import (
	"strconv"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// beyondLoss lists what the job says of the loss's path that the built model
// does not do: the path is the library's, and a job that names another is not
// the one that would be answered.
func beyondLoss(r *Run) fault.Fields {
	var f fault.Fields
	l := &r.Job.Training.Loss
	refuse := func(path, got, want string) {
		f.Add("training.loss."+path, got, want+" (the library's own way; another is not modelled)", want)
	}
	if does := r.Net.Items.LossUpcast; does != "" && l.Upcast != "" && l.Upcast != does && l.Kind != fusedLinear {
		refuse("upcast", l.Upcast, does)
	}
	if does := r.Net.Items.ShiftCopies; l.ShiftCopy != nil && *l.ShiftCopy != does {
		refuse("shift_copy", strconv.FormatBool(*l.ShiftCopy), strconv.FormatBool(does))
	}
	holds := r.Job.Runtime.HoldsOutputs != spec.Off
	if l.HoldsLogits != nil && r.Job.Runtime.Trainer == "plain" && *l.HoldsLogits != holds {
		f.Add("training.loss.holds_logits", strconv.FormatBool(*l.HoldsLogits), "what runtime.holds_outputs says", strconv.FormatBool(holds))
	}
	if l.Kind == chunked {
		return f // whose numbers its own trainer takes
	}
	if l.Chunks > 0 {
		f.Add("training.loss.chunks", l.Chunks, "nothing: the loss is not in chunks", "")
	}
	if l.ChunkTokens > 0 {
		f.Add("training.loss.chunk_tokens", l.ChunkTokens, "nothing: the loss is not in chunks", "")
	}
	return f
}
