package step

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// What an objective asks of the model, of its batches and of a second model.

// completionMask is the batch's tensor that says which tokens are answers.
const completionMask = "completion_mask"

// The log-probabilities of a frozen model, where a preference trainer computed
// them before.
const (
	refChosen   = "ref_chosen_logps"
	refRejected = "ref_rejected_logps"
)

// scoresOf is what TRL's trainers ask of their head beside log-probabilities.
func scoresOf(objective string) *graph.TokenScores {
	if objective == "dpo" {
		return &graph.TokenScores{Entropy: true, MeanLogits: true, Top: true}
	}
	return &graph.TokenScores{Entropy: true, Top: true}
}

// preferenceInputs are pairs, chosen answers before rejected ones, as TRL's
// DataCollatorForPreference makes them (trl 1.16, trainer/dpo_trainer.py).
func preferenceInputs(s model.Sizes, reference string) []model.Input {
	shape := graph.D(2*s.Batch, s.Tokens)
	in := []model.Input{
		{Name: model.InputIDs, DType: graph.I64, Shape: shape},
		{Name: model.AttentionMask, DType: graph.I64, Shape: shape},
		{Name: completionMask, DType: graph.I64, Shape: shape},
	}
	if reference == "precomputed" {
		for _, name := range []string{refChosen, refRejected} {
			in = append(in, model.Input{Name: name, DType: graph.F32, Shape: graph.D(s.Batch)})
		}
	}
	return in
}

// plainDropout is the job as TRL's preference trainers run it, which disable
// dropout in the model and its adapters (disable_dropout).
func plainDropout(job *spec.Job) {
	job.Model.Config = withoutDropout(job.Model.Config)
	if a := job.Training.Adapter; a != nil {
		bare := *a
		bare.Dropout = 0
		job.Training.Adapter = &bare
	}
}

// buildReference makes the frozen copy that log-probabilities are compared with.
// Only its log-probabilities are asked for, and nothing of it is recomputed.
func (r *Run) buildReference(family *model.Family, config *model.Config) error {
	if r.Job.Training.ReferenceModel != "copy" {
		return nil
	}
	b := buildOf(*r.Job, r.M.Versions, 0)
	b.Checkpointed = false
	b.Patches.Scored = &graph.TokenScores{}
	net, err := family.New(*config, b)
	if err != nil {
		return err
	}
	net.Root.Named("reference")
	for _, p := range net.Root.Parameters() { // nobody told them that they are frozen
		p.Category = graph.ResidentModules
	}
	r.reference = net
	return nil
}

// scoreReference runs the frozen model on the batch in hand, without gradients:
// the copy, or the trained model with its adapters off.
func (r *Run) scoreReference(f *graph.Frame, forward func() model.Outputs) (out model.Outputs) {
	f.NoGrad(func() {
		if r.reference != nil {
			trained := r.Net
			r.Net = r.reference
			out = forward()
			r.Net = trained
			return
		}
		if remember := r.Net.Remember; remember != nil {
			defer remember()()
		}
		r.adaptersOff = true
		r.withoutRecompute(func() { out = forward() })
		r.adaptersOff = false
	})
	return out
}

// withoutRecompute is disable_gradient_checkpointing.
func (r *Run) withoutRecompute(body func()) {
	kinds := make([]graph.Recompute, len(r.Net.Blocks))
	for i, b := range r.Net.Blocks {
		kinds[i], b.Recompute = b.Recompute, graph.KeepAll
	}
	body()
	for i, b := range r.Net.Blocks {
		b.Recompute = kinds[i]
	}
}
