package planner

import (
	"context"
	"fmt"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// rival is the most likely other value of a setting that decides.
type rival struct {
	path   string
	values [2]string // each is the other's rival
	set    func(job *spec.Job, value string)
}

func rivals() []rival {
	return []rival{
		{"training.method", [2]string{"full", "lora"}, func(j *spec.Job, v string) { j.Training.Method = v }},
		{"training.precision", [2]string{"bf16-mixed", "bf16"}, func(j *spec.Job, v string) { j.Training.Precision = spec.Precision(v) }},
		{"training.weights_dtype", [2]string{"fp32", "bf16"}, func(j *spec.Job, v string) { j.Training.WeightsDType = spec.DType(v) }},
		{"training.activation_checkpointing", [2]string{"none", "full"}, func(j *spec.Job, v string) { j.Training.Checkpointing = spec.Checkpointing{Mode: v} }},
		{"training.attention", [2]string{"sdpa", "eager"}, func(j *spec.Job, v string) { j.Training.Attention = spec.Attention{Kernel: v} }},
		{"training.padding", [2]string{"none", "mask"}, func(j *spec.Job, v string) { j.Training.Padding = v }},
	}
}

// Rival is the value that a deciding assumption would most likely have if not
// the one taken; none where there is no such value.
func Rival(a estimator.Assumption) string {
	value, _, _ := rivalOf(a)
	return value
}

func rivalOf(a estimator.Assumption) (string, rival, bool) {
	taken := fmt.Sprint(a.Value)
	for _, r := range rivals() {
		if i := slices.Index(r.values[:], taken); r.path == a.Path && i >= 0 {
			return r.values[1-i], r, true
		}
	}
	return "", rival{}, false
}

// WithEffects is an answer to a job that says of each deciding assumption by
// how much the required bytes would move with the value that is its rival. That
// takes an estimate for each, which the answer itself does not wait for. A value
// that the engine refuses beside the rest of the job has no effect.
func (p *Planner) WithEffects(ctx context.Context, job spec.Job, est *estimator.Estimate) *estimator.Estimate {
	whole := *est
	whole.Assumptions = slices.Clone(est.Assumptions)
	each(len(whole.Assumptions), func(i int) {
		a := &whole.Assumptions[i]
		value, r, ok := rivalOf(*a)
		if !ok || !a.Decides {
			return
		}
		other := job
		r.set(&other, value)
		if moved, err := p.Estimate(ctx, other); err == nil {
			a.Effect = moved.Peak.Required - est.Peak.Required
		}
	})
	return &whole
}
