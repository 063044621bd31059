package wire

import "memplan/internal/estimator/spec"

// contradictions notes settings that cannot both hold.
func (c *check) contradictions(job spec.Job, root *node) {}
