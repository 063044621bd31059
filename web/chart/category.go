package chart

import "slices"

// Category is one kind of memory as the charts and tables show it.
type Category struct {
	Key   string // as the public format spells it
	Label string // as people say it
	How   string // how its bytes come about, one sentence
}

// Categories are all kinds of memory in the order in which every chart stacks
// them: what stays for the whole job first, what comes and goes above it, what
// lies outside the tensors last. Colour and pattern follow the key.
func Categories() []Category {
	return []Category{
		{"parameters", "Parameters", "Every weight and buffer of the model in the type it is stored in, one allocation a tensor."},
		{"master_weights", "Master weights", "A separate fp32 copy that the optimizer steps, where the engine keeps one."},
		{"adapters", "Adapters", "The low-rank matrices added beside frozen weights, in the adapter's own type."},
		{"gradients", "Gradients", "One tensor for each trained weight, from the moment its backward node ran until it is set to none."},
		{"optimizer", "Optimizer state", "The tensors that the optimizer keeps for each trained weight, made in its first step."},
		{"resident_modules", "Other resident modules", "Modules kept on the card beside the trained model: encoders, a teacher, a reference copy."},
		{"buckets", "Communication buckets", "Flat buffers in which gradients or weights travel between ranks."},
		{"inputs", "Inputs", "The batch itself: token ids, masks, labels, pixels."},
		{"activations", "Activations", "What autograd keeps from forward until the node that needs it has run."},
		{"logits", "Logits and loss", "The output over the vocabulary, its upcast copy and what the loss keeps of them."},
		{"temporaries", "Temporaries", "Results that live only while an operation or a short run of operations needs them."},
		{"cublas_workspace", "cuBLAS workspace", "Scratch memory that matrix multiplication takes from the same allocator."},
		{"conv_workspace", "Convolution workspace", "Scratch memory of the convolution algorithm that would be chosen."},
		{"rounding", "Rounding", "Each block is a multiple of 512 bytes; this is what the tensors in them do not use."},
		{"fragmentation", "Cached and fragmented", "Segments that the allocator holds beyond what is allocated at the peak."},
		{"context", "CUDA context", "Driver context and loaded kernels, outside the allocator; calibrated, with an interval."},
		{"communication", "Communication library", "NCCL's channels and buffers, outside the allocator; calibrated, with an interval."},
		{"other", "Other", "What remains of the process's memory after the terms above."},
	}
}

// Label returns what people call a category, or the key of an unknown one.
func Label(key string) string {
	if i := Order(key); i < len(Categories()) {
		return Categories()[i].Label
	}
	return key
}

// Order is a category's place in the stack; unknown keys come last.
func Order(key string) int {
	all := Categories()
	if i := slices.IndexFunc(all, func(c Category) bool { return c.Key == key }); i >= 0 {
		return i
	}
	return len(all)
}
