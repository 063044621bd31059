package estimator

import (
	"strconv"

	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
	"memplan/internal/fault"
)

// newest are the library versions an unversioned job is taken to run: the
// newest whose behaviour the engine was checked against.
var newest = map[string]string{
	"torch": "2.15.0", "transformers": "5.24.0", "peft": "0.21.2", "accelerate": "1.15.0", "bitsandbytes": "0.50.2", "litgpt": "0.5.13",
}

// resolver fills unset fields and writes down which.
type resolver struct {
	job         spec.Job
	assumptions []Assumption
	fields      fault.Fields
}

// Resolve fills every unset field of the job from its trainer and library
// versions, and lists what it filled, the deciding assumptions first. It fails
// with fault.Fields naming every setting that contradicts another.
func Resolve(job spec.Job) (spec.Job, []Assumption, error) {
	r := resolver{job: job}
	r.runtime()
	r.precision()
	r.optimizer()
	r.batch()
	r.activations()
	r.adapter()
	r.quantization()
	r.parallelism()
	r.contradictions()
	return r.job, r.ordered(), r.fields.Err()
}

// fill sets an unset field and writes it down.
func fill[T comparable](r *resolver, field *T, path string, value T, decides bool, why string) {
	var unset T
	if *field != unset || value == unset {
		return
	}
	*field = value
	r.assume(path, value, decides, why)
}

func (r *resolver) assume(path string, value any, decides bool, why string) {
	r.assumptions = append(r.assumptions, Assumption{Path: path, Value: value, Why: why, Decides: decides})
}

// ordered puts the deciding assumptions first and keeps the order otherwise.
func (r *resolver) ordered() []Assumption {
	sorted := make([]Assumption, 0, len(r.assumptions))
	for _, decides := range []bool{true, false} {
		for _, a := range r.assumptions {
			if a.Decides == decides {
				sorted = append(sorted, a)
			}
		}
	}
	return sorted
}

func (r *resolver) runtime() {
	j := &r.job
	fill(r, &j.Version, "version", 1, false, "the only version")
	if library, _, ok := model.Library(j.Model.ID); ok {
		fill(r, &j.Model.Implementation, "model.implementation", library, false, "the id names it")
	}
	if _, ok := j.Model.Config["_class_name"]; ok {
		fill(r, &j.Model.Implementation, "model.implementation", model.Diffusers, false, "the config is one of diffusers")
	}
	if f := model.OfSizes(j.Model.Architecture); f != nil {
		fill(r, &j.Model.Implementation, "model.implementation", f.Implementation, false, "the library that builds networks of these parts")
	}
	if model.IsGraph(j.Model) {
		fill(r, &j.Model.Implementation, "model.implementation", model.Plain, false, "a module of one's own")
	}
	if j.Runtime.Trainer == model.Megatron {
		fill(r, &j.Model.Implementation, "model.implementation", model.Megatron, false, "the models of this trainer")
	}
	fill(r, &j.Model.Implementation, "model.implementation", "hf", false, "the most used code for these models")
	fill(r, &j.Runtime.Framework, "runtime.framework", "pytorch", false, "the default")
	if i := j.Model.Implementation; i == model.MMSegmentation || i == model.MMAction {
		fill(r, &j.Runtime.Trainer, "runtime.trainer", "mmengine", true, "the trainer of that library")
	}
	if j.Model.Implementation == model.LitGPT {
		fill(r, &j.Runtime.Trainer, "runtime.trainer", "lightning", true, "the loop of that library")
	}
	if j.Model.Implementation == model.Megatron {
		fill(r, &j.Runtime.Trainer, "runtime.trainer", model.Megatron, true, "the trainer of that library")
	}
	if j.Model.Implementation != "hf" {
		fill(r, &j.Runtime.Trainer, "runtime.trainer", "plain", true, "these models are trained by loops of one's own")
	}
	fill(r, &j.Runtime.Trainer, "runtime.trainer", "hf", false, "the default")
	fill(r, &j.Runtime.FrameworkVersion, "runtime.framework_version", newest["torch"], false, "the newest known")
	libraries := map[string]string{}
	for name, version := range j.Runtime.LibraryVersions {
		libraries[name] = version
	}
	names := []string{"transformers", "peft", "accelerate", "bitsandbytes"}
	if j.Model.Implementation == model.LitGPT {
		names = append(names, model.LitGPT)
		if libraries["lit_gpt"] != "" { // the scripts that became the package
			libraries[model.LitGPT] = "0.0.1"
		}
	}
	for _, name := range names {
		if libraries[name] == "" {
			libraries[name] = r.companion(name)
			r.assume("runtime.library_versions."+name, libraries[name], false, "the one current beside this torch")
		}
	}
	j.Runtime.LibraryVersions = libraries
	fill(r, &j.Runtime.Allocator.Backend, "runtime.allocator.backend", "native", false, "torch's default")
}

// companion is the version of a library that was current beside the job's
// torch.
func (r *resolver) companion(name string) string {
	if name == model.LitGPT && r.torch().AtLeast(spec.Version{2, 5}) || r.torch().AtLeast(spec.Version{2, 9}) {
		return newest[name]
	}
	switch name {
	case model.LitGPT:
		return "0.4.8"
	case "transformers":
		return "4.49.0"
	case "bitsandbytes":
		if r.job.Model.Implementation == model.LitGPT {
			return "0.42.0" // which it pins
		}
		return "0.45.3"
	}
	return newest[name]
}

func (r *resolver) torch() spec.Version { return spec.ParseVersion(r.job.Runtime.FrameworkVersion) }

func (r *resolver) transformers() spec.Version {
	return spec.ParseVersion(r.job.Runtime.LibraryVersions["transformers"])
}

func (r *resolver) precision() {
	t := &r.job.Training
	fill(r, &t.Method, "training.method", "full", true, "the default")
	fill(r, &t.Precision, "training.precision", spec.PrecisionBF16Mixed, true, "the usual choice on cards that have bf16")
	weights := spec.FP32
	megatron := r.job.Runtime.Trainer == model.Megatron
	zero := shardedByZeRO(&r.job) && !megatron
	if megatron {
		r.megatron()
	}
	if zero && t.Precision.Pure() != spec.FP32 {
		fill(r, &t.MasterWeights, "training.master_weights", "fp32", false, "ZeRO steps a copy of the weights in fp32")
	}
	why := "mixed precision trains fp32 weights unless the loader was told otherwise"
	if d := t.Precision.Pure(); d != "" {
		weights, why = d, "everything is in the precision's type"
	} else if zero {
		weights, why = t.Precision.Mixed(), "DeepSpeed casts the module to it"
	} else if megatron {
		weights, why = t.Precision.Mixed(), "Megatron casts the model to it"
	} else if t.Method != "full" {
		weights, why = t.Precision.Mixed(), "a frozen base is usually loaded in the compute type"
	}
	fill(r, &t.WeightsDType, "training.weights_dtype", weights, true, why)
}

func (r *resolver) optimizer() {
	o := &r.job.Training.Optimizer
	hf := r.job.Runtime.Trainer == "hf" || r.job.Runtime.Trainer == "trl"
	fill(r, &o.Name, "training.optimizer.name", "adamw", false, "the default")
	library, form := step.UsualLibrary(o)
	if library == "torch" && r.job.Runtime.Trainer == "deepspeed" && (o.Name == "adamw" || o.Name == "adam") {
		library, form = "deepspeed", "fused"
	}
	fill(r, &o.Library, "training.optimizer.library", library, false, "the usual implementation")
	if r.job.Runtime.Trainer == model.Megatron && (o.Name == "adamw" || o.Name == "adam") {
		library, form = model.Megatron, "fused"
	}
	bits := 32
	if o.Library == "torchao" && !o.CPUOffload {
		bits = 8
	}
	fill(r, &o.StateBits, "training.optimizer.state_bits", bits, false, "the default")
	if o.Library == "transformers" && o.Name == "adamw" {
		fill(r, &o.Implementation, "training.optimizer.implementation", "for-loop", false, "there is no other")
	}
	if o.Library == "apex" {
		fill(r, &o.Implementation, "training.optimizer.implementation", "fused", false, "there is no other")
	}
	if o.Library == "schedulefree" {
		fill(r, &o.Implementation, "training.optimizer.implementation", "foreach", false, "the package's default")
	}
	if form != "" && o.Library == library {
		fill(r, &o.Implementation, "training.optimizer.implementation", form, false, "there is no other")
	}
	if o.Library != "torch" {
		return
	}
	implementation, why := "foreach", "torch's default on CUDA"
	if r.torch().Before(spec.Version{2}) {
		implementation, why = "for-loop", "torch's default before 2.0"
	}
	if hf && o.Name == "adamw" && r.transformers().AtLeast(spec.Version{5}) {
		implementation, why = "fused", "the Trainer's default since transformers 5"
	}
	if o.Name == "adafactor" {
		implementation, why = "for-loop", "torch's default for Adafactor"
	}
	fill(r, &o.Implementation, "training.optimizer.implementation", implementation, false, why)
}

func (r *resolver) batch() {
	t := &r.job.Training
	micro := 1
	if r.job.Runtime.Trainer == "hf" || r.job.Runtime.Trainer == "trl" {
		micro = 8
	}
	fill(r, &t.MicroBatchSize, "training.micro_batch_size", micro, true, "the trainer's default")
	switch r.job.Model.Implementation {
	case model.Timm, model.Torchvision, model.MMSegmentation, model.MMAction:
		r.images()
	}
	if model.IsGraph(r.job.Model) { // which has the sizes of its inputs
		t.SequenceLength = max(t.SequenceLength, 1)
	}
	if l := t.SequenceLengths; l != nil && l.Longest > 0 {
		fill(r, &t.SequenceLength, "training.sequence_length", l.Longest, true, "the longest sample")
	}
	fill(r, &t.SequenceLength, "training.sequence_length", r.defaultLength(), true, "a common choice")
	fill(r, &t.GradAccumSteps, "training.gradient_accumulation_steps", 1, false, "the default")
	fill(r, &t.Padding, "training.padding", "none", true, "no attention mask is passed")
	fill(r, &t.Packing, "training.packing", "none", false, "the default")
	fill(r, &t.Objective, "training.objective", "sft", false, "the default")
}

// images fills what a batch of images needs where a library of image models is
// named. Its samples have no tokens.
func (r *resolver) images() {
	t := &r.job.Training
	if len(t.ImageSize) == 0 {
		t.ImageSize = []int{224, 224}
		r.assume("training.image_size", t.ImageSize, true, "the size most of these models are trained at")
	}
	fill(r, &t.Objective, "training.objective", "classification", true, "what these models are made for")
	fill(r, &t.MemoryFormat, "training.memory_format", "contiguous", true, "torch's default")
	t.SequenceLength = max(t.SequenceLength, 1)
}

// defaultLength is 2048 tokens, or as many as the model has positions for.
func (r *resolver) defaultLength() int {
	for _, key := range []string{"max_position_embeddings", "n_positions"} {
		if n, ok := r.job.Model.Config[key].(float64); ok && n >= 1 && n < 2048 {
			return int(n)
		}
	}
	return 2048
}

// keepsGraph reports whether a library checkpoints without reentering the graph
// by itself.
func keepsGraph(library string) bool {
	return library == model.Timm || library == model.Diffusers || library == model.LitGPT
}

func (r *resolver) activations() {
	t := &r.job.Training
	fill(r, &t.Checkpointing.Mode, "training.activation_checkpointing", "none", true, "the default")
	if t.Checkpointing.Mode != "none" && t.Checkpointing.Reentrant == nil {
		reentrant := !keepsGraph(r.job.Model.Implementation) && r.transformers().Before(spec.Version{5})
		t.Checkpointing.Reentrant = &reentrant
		r.assume("training.activation_checkpointing.reentrant", reentrant, false, "the default of this library")
	}
	if r.job.Runtime.Trainer == model.Megatron {
		fill(r, &t.Attention.Kernel, "training.attention", "eager", true, "what the local implementation has")
	}
	fill(r, &t.Attention.Kernel, "training.attention", "sdpa", true, "the default of transformers")
	if r.job.Model.Implementation == model.LitGPT {
		r.litgptLoss()
	}
	fill(r, &t.Loss.Kind, "training.loss", "default", true, "the model's own loss, logits in fp32")
	fill(r, &t.ZeroGradAt, "training.zero_grad_position", "after_step", false, "the default")
	on := true
	for _, s := range []struct {
		field **bool
		path  string
	}{
		{&t.GradClipping, "training.gradient_clipping"},
		{&t.ZeroGradToNone, "training.zero_grad_set_to_none"},
		{&t.OptimizerStep, "training.optimizer_step"},
	} {
		if *s.field == nil {
			*s.field = &on
			r.assume(s.path, true, false, "the default")
		}
	}
	if trainer := r.job.Runtime.Trainer; (trainer == "plain" || trainer == "deepspeed") && r.job.Runtime.HoldsOutputs == spec.Auto {
		r.job.Runtime.HoldsOutputs = spec.On
		r.assume("runtime.holds_outputs", true, true, "a loop that assigns outputs = model(...) keeps them until the next assignment")
	}
}

// litgptLoss fills how LitGPT's scripts take the loss, and that they do not
// clip.
func (r *resolver) litgptLoss() {
	t := &r.job.Training
	if t.Method == "lora" {
		fill(r, &t.Loss.Kind, "training.loss.kind", "chunked", true, "what the script for adapters does")
	}
	if t.Loss.Kind == "chunked" {
		fill(r, &t.Loss.ChunkTokens, "training.loss.chunk_tokens", 128, false, "the script's number")
	}
	if t.GradClipping == nil {
		off := false
		t.GradClipping = &off
		r.assume("training.gradient_clipping", false, false, "the scripts do not clip")
	}
}

func (r *resolver) adapter() {
	t := &r.job.Training
	if t.Method != "lora" && t.Method != "dora" {
		return
	}
	var a spec.Adapter
	if t.Adapter != nil {
		a = *t.Adapter
	}
	fill(r, &a.Rank, "training.adapter.rank", 8, false, "PEFT's default")
	fill(r, &a.Alpha, "training.adapter.alpha", 8, false, "PEFT's default")
	if r.job.Model.Implementation == model.LitGPT {
		fill(r, &a.DType, "training.adapter.dtype", t.WeightsDType, true, "LitGPT makes adapters in the type of the weights")
	}
	fill(r, &a.DType, "training.adapter.dtype", spec.FP32, true, "PEFT casts adapters to fp32")
	t.Adapter = &a
}

// quantization fills in how a frozen base is stored and prepared.
func (r *resolver) quantization() {
	t := &r.job.Training
	if t.Quantization == nil || t.Quantization.Type == "none" {
		return
	}
	q := *t.Quantization
	fill(r, &q.Library, "training.quantization.library", "bitsandbytes", false, "the usual implementation")
	if litgpt := r.job.Model.Implementation == model.LitGPT; litgpt && q.KBitPrepare == nil {
		off, head := false, true
		q.KBitPrepare = &off
		if q.QuantizedHead == nil {
			q.QuantizedHead = &head
			r.assume("training.quantization.quantized_head", true, true, "Fabric quantises every linear layer")
		}
	}
	if q.KBitPrepare == nil {
		on := true
		q.KBitPrepare = &on
		r.assume("training.quantization.kbit_prepare", true, true, "scripts call prepare_model_for_kbit_training, which casts what is not quantised to fp32")
	}
	if q.Type == "int8" {
		r.assume("training.quantization.type", q.Type, false, "columns of outliers, which depend on values, are taken to be none")
	}
	t.Quantization = &q
}

func (r *resolver) parallelism() {
	p := &r.job.Parallelism
	for _, s := range []struct {
		field *int
		path  string
	}{{&p.Tensor, "tensor"}, {&p.Pipeline, "pipeline"}, {&p.Context, "context"}} {
		fill(r, s.field, "parallelism."+s.path, 1, false, "the default")
	}
	rest := 1
	if n := p.Tensor * p.Pipeline * p.Context; r.job.Target.Count > 0 && r.job.Target.Count%n == 0 {
		rest = r.job.Target.Count / n
	}
	fill(r, &p.Data, "parallelism.data", rest, false, "the ranks the other dimensions leave")
	sharding, why := "none", "data parallelism without sharding"
	if p.Data > 1 {
		sharding = "ddp"
		if r.job.Model.Implementation == model.LitGPT {
			sharding, why = "fsdp", "the strategy of LitGPT's scripts"
		}
	}
	fill(r, &p.Sharding, "parallelism.sharding", sharding, p.Data > 1, why)
	r.fsdp()
	r.zero()
	fill(r, &r.job.Target.Count, "target.count", p.Ranks(), false, "the product of the parallel dimensions")
}

// fsdp fills the settings of fully sharded data parallelism.
func (r *resolver) fsdp() {
	p := &r.job.Parallelism
	if p.Sharding != "fsdp" {
		return
	}
	var o spec.FSDP
	if p.FSDP != nil {
		o = *p.FSDP
	}
	if r.job.Model.Implementation == model.LitGPT {
		fill(r, &o.Version, "parallelism.fsdp.version", 1, true, "Fabric's strategy")
	}
	fill(r, &o.Version, "parallelism.fsdp.version", 2, true, "the generation that is developed")
	if mixed := r.job.Training.Precision.Mixed(); mixed != "" {
		reduce, why := spec.FP32, "gradients are usually summed in fp32"
		if r.job.Runtime.Trainer == "hf" {
			reduce, why = mixed, "accelerate's policy"
		}
		fill(r, &o.ReduceDType, "parallelism.fsdp.reduce_dtype", reduce, true, why)
	}
	if o.ReshardAfterForward == nil { // and stays unset: torch decides for the root
		r.assume("parallelism.fsdp.reshard_after_forward", true, true, "the default; the root module stays gathered")
	}
	if o.Version == 1 {
		strategy := "FULL_SHARD"
		if o.ReshardAfterForward != nil && !*o.ReshardAfterForward {
			strategy = "SHARD_GRAD_OP"
		}
		fill(r, &o.Strategy, "parallelism.fsdp.strategy", strategy, true, "what reshard_after_forward says")
		fill(r, &o.BackwardPrefetch, "parallelism.fsdp.backward_prefetch", "pre", false, "the default")
	}
	p.FSDP = &o
}

// contradictions reports settings that cannot hold together.
func (r *resolver) contradictions() {
	j := &r.job
	if n := j.Parallelism.Ranks(); n != j.Target.Count {
		r.fields.Add("target.count", j.Target.Count, "data × tensor × pipeline × context, which is "+strconv.Itoa(n), strconv.Itoa(n))
	}
	if d := j.Training.Precision.Pure(); d != "" && d != j.Training.WeightsDType {
		r.fields.Add("training.weights_dtype", string(j.Training.WeightsDType), "the type of precision "+string(j.Training.Precision), string(d))
	}
}
