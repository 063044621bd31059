package wire

import "slices"

// Alias is a short key of the form and the URL. A value has the meaning it has
// under Path.
type Alias struct {
	Key  string
	Path string // the key of the format it stands for
	Help string
}

// Aliases lists the short keys, in the order of the format. Each stands for
// one key and each key has at most one, so that a job has one short URL.
func Aliases() []Alias {
	return slices.Clone([]Alias{
		{"name", "name", "a name for the job"},
		{"m", "model.id", "model: a catalogue entry or hub id"},
		{"config", "model.config", "a config.json, as JSON"},
		{"arch", "model.architecture", "explicit sizes, as JSON"},
		{"params", "model.parameters", "only a count of parameters: 7B"},
		{"impl", "model.implementation", "whose code runs the model"},
		{"method", "training.method", "full, lora, dora or frozen"},
		{"lora", "training.adapter.rank", "rank of the adapter; the method is lora unless one is given"},
		{"alpha", "training.adapter.alpha", "alpha of the adapter"},
		{"targets", "training.adapter.target_modules", "modules with an adapter: q_proj,v_proj or all-linear"},
		{"quant", "training.quantization", "of a frozen base"},
		{"prec", "training.precision", "arithmetic of the step"},
		{"wdtype", "training.weights_dtype", "type the weights are stored in"},
		{"master", "training.master_weights", "a separate copy the optimizer steps"},
		{"opt", "training.optimizer", "optimizer, or a Hugging Face optim name"},
		{"mb", "training.micro_batch_size", "micro batch: samples per replica per forward"},
		{"ga", "training.gradient_accumulation_steps", "gradient accumulation steps"},
		{"seq", "training.sequence_length", "tokens per sample"},
		{"pack", "training.packing", "packing of samples"},
		{"img", "training.image_size", "image size: 224x224"},
		{"frames", "training.num_frames", "frames per sample"},
		{"classes", "training.num_classes", "classes of the head"},
		{"ac", "training.activation_checkpointing", "activation checkpointing"},
		{"attn", "training.attention", "attention kernel"},
		{"fused", "training.fused_kernels", "fused kernels, comma separated"},
		{"loss", "training.loss", "path from hidden states to the loss"},
		{"compile", "training.compile", "torch.compile"},
		{"obj", "training.objective", "what is trained for"},
		{"ref", "training.reference_model", "reference model of preference training"},
		{"ema", "training.ema", "an averaged copy of the weights"},
		{"dp", "parallelism.data", "data-parallel ranks"},
		{"shard", "parallelism.sharding", "ddp, zero1, zero2, zero3 or fsdp"},
		{"tp", "parallelism.tensor", "tensor-parallel size"},
		{"sp", "parallelism.sequence_parallel", "sequence parallelism"},
		{"pp", "parallelism.pipeline", "pipeline stages"},
		{"cp", "parallelism.context", "context-parallel size"},
		{"ep", "parallelism.expert", "expert-parallel size"},
		{"off", "parallelism.offload", "what is offloaded, comma separated"},
		{"fw", "runtime.framework", "framework"},
		{"fwv", "runtime.framework_version", "version of the framework"},
		{"trainer", "runtime.trainer", "whose loop runs"},
		{"seg", "runtime.allocator.expandable_segments", "expandable segments of the allocator"},
		{"gpu", "target.gpu", "GPU: a catalogue key or alias"},
		{"dev", "target.device", "uuid of an attached GPU"},
		{"n", "target.count", "number of GPUs"},
		{"mem", "target.memory_gib", "memory of a card the catalogue lacks: 24GiB"},
		{"mig", "target.mig_profile", "MIG profile"},
		{"other", "target.other_processes_gib", "memory held by other processes"},
		{"head", "target.headroom_gib", "memory that shall stay free"},
	})
}

// zeroAlias is the short key of the ZeRO stage: the one short key whose values
// are not those of its path. It is read, never written.
const zeroAlias = "zero"

// adapterAlias is the short key that implies a method.
const adapterAlias = "lora"
