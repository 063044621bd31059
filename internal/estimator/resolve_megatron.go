package estimator

import (
	"memplan/internal/estimator/spec"
)

// megatron fills what Megatron-LM does beside a model in half precision.
func (r *resolver) megatron() {
	t, p := &r.job.Training, &r.job.Parallelism
	if t.Precision != spec.PrecisionFP32 {
		fill(r, &t.MasterWeights, "training.master_weights", "fp32", false, "the optimizer steps a copy in fp32")
		fill(r, &t.GradientDType, "training.gradient_dtype", spec.FP32, true, "gradients are summed in fp32")
	}
	var m spec.Megatron
	if p.Megatron != nil {
		m = *p.Megatron
	}
	fill(r, &m.TransformerImplementation, "parallelism.megatron.transformer_implementation", "transformer_engine", true, "the trainer's default")
	p.Megatron = &m
	if p.Pipeline > 1 {
		fill(r, &p.PipelineSchedule, "parallelism.pipeline_schedule", "1f1b", true, "the trainer's default")
	}
}
