package jobfile

import (
	"strings"

	"memplan/internal/estimator/spec"
)

// lightning is the Trainer of Lightning. Keys of
// Lightning-AI/pytorch-lightning:src/lightning/pytorch/trainer/trainer.py@2.5.
func lightning() Format {
	return Format{
		Name: "lightning", Title: "Lightning", File: "trainer.py", Kind: Training, Source: "Lightning 2.5",
		syntax: pythonSyntax(), implies: trainer("lightning"), suits: trainedBy("lightning", "plain", ""),
		rules: []rule{
			lightningPrecision(),
			accumulation("Trainer.accumulate_grad_batches"),
			clipping("Trainer.gradient_clip_val", nil),
			lightningDevices(),
			lightningStrategy(),
			flag("Trainer.sync_batchnorm", "runtime.sync_batch_norm", func(j *spec.Job) *bool { return &j.Runtime.SyncBatchNorm }),
			flag("Trainer.benchmark", "runtime.cudnn_benchmark", func(j *spec.Job) *bool { return &j.Runtime.CuDNNBenchmark }),
			flag("Trainer.deterministic", "runtime.cudnn_deterministic", func(j *spec.Job) *bool { return &j.Runtime.CuDNNDeterminist }),
		},
	}
}

func lightningPrecision() rule {
	return custom(
		func(s *Subject, d *document) {
			t := s.Job.Training
			words := map[spec.Precision]string{spec.PrecisionBF16Mixed: "bf16-mixed", spec.PrecisionFP16Mixed: "16-mixed", spec.PrecisionFP32: "32-true", spec.PrecisionBF16: "bf16-true", spec.PrecisionFP16: "16-true"}
			if w := words[t.Precision]; w != "" && t.WeightsDType == lightningWeights(w) {
				d.set("Trainer.precision", w)
			}
		},
		func(in *source, j *spec.Job) {
			w, ok := in.word("Trainer.precision")
			words := map[string]spec.Precision{
				"bf16-mixed": spec.PrecisionBF16Mixed, "16-mixed": spec.PrecisionFP16Mixed, "32-true": spec.PrecisionFP32, "32": spec.PrecisionFP32,
				"bf16-true": spec.PrecisionBF16, "16-true": spec.PrecisionFP16, "bf16": spec.PrecisionBF16Mixed, "16": spec.PrecisionFP16Mixed,
			}
			p, known := words[w]
			switch {
			case known:
				j.Training.Precision, j.Training.WeightsDType = p, lightningWeights(w)
			case ok:
				in.refuse("Trainer.precision", w, "one of "+strings.Join(sorted(words), ", "))
			}
		}, "training.precision", "training.weights_dtype")
}

// lightningWeights is the type a precision keeps the weights in.
func lightningWeights(precision string) spec.DType {
	switch precision {
	case "bf16-true":
		return spec.BF16
	case "16-true":
		return spec.FP16
	}
	return spec.FP32
}

func lightningDevices() rule {
	return custom(
		func(s *Subject, d *document) {
			n, node := ranks(s.Job), s.Job.Parallelism.GPUsPerNode
			if node == 0 || n < node {
				node = n
			}
			d.set("Trainer.devices", node)
			if nodes := (n + node - 1) / node; nodes > 1 {
				d.set("Trainer.num_nodes", nodes)
			}
		},
		func(in *source, j *spec.Job) {
			n, ok := in.whole("Trainer.devices")
			nodes, several := in.whole("Trainer.num_nodes")
			if !ok {
				return
			}
			if several {
				j.Parallelism.GPUsPerNode = n
				n *= nodes
			}
			j.Target.Count, j.Parallelism.Data = n, n
		}, "target.count", "parallelism.data", "parallelism.gpus_per_node")
}

func lightningStrategy() rule {
	strategies := []struct{ name, sharding, offload string }{
		{"ddp", "ddp", ""},
		{"fsdp", "fsdp", ""},
		{"fsdp_cpu_offload", "fsdp", "parameters"},
		{"deepspeed_stage_1", "zero1", ""},
		{"deepspeed_stage_2", "zero2", ""},
		{"deepspeed_stage_2_offload", "zero2", "optimizer"},
		{"deepspeed_stage_3", "zero3", ""},
	}
	return custom(
		func(s *Subject, d *document) {
			p := s.Job.Parallelism
			for _, x := range strategies {
				if x.sharding == p.Sharding && strings.Join(p.Offload, "") == x.offload {
					d.set("Trainer.strategy", x.name)
				}
			}
		},
		func(in *source, j *spec.Job) {
			w, ok := in.word("Trainer.strategy")
			if !ok || w == "auto" {
				return
			}
			for _, x := range strategies {
				if x.name == w {
					if j.Parallelism.Sharding = x.sharding; x.offload != "" {
						j.Parallelism.Offload = []string{x.offload}
					}
					return
				}
			}
			var names []string
			for _, x := range strategies {
				names = append(names, x.name)
			}
			in.refuse("Trainer.strategy", w, "one of auto, "+strings.Join(names, ", "))
		}, "parallelism.sharding", "parallelism.offload")
}
