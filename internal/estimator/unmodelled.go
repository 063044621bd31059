package estimator

import (
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/fault"
)

// Unmodelled lists the settings of a job that the engine has no rules for, and
// those that contradict each other. The model is not looked at, so that it may
// be missing: what only shows once the model is built, such as an optimizer
// that does not exist, is left to Run.
func Unmodelled(job spec.Job) fault.Fields {
	job.Model = spec.Model{Implementation: job.Model.Implementation}
	resolved, _, contradictions := Resolve(job)
	_, err := step.Compile(resolved, cardFor(spec.Device{}, spec.Coefficients{})) // fails, for want of a model
	var found fault.Fields
	for _, f := range fault.FieldsOf(err) {
		if f.Path == "model.implementation" || !strings.HasPrefix(f.Path, "model") {
			found = append(found, f)
		}
	}
	return append(found, fault.FieldsOf(contradictions)...)
}
