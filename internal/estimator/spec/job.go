package spec

// Job is one training job: what is trained, how, on how many ranks, by which
// software, on which card. Section 1 of the public format.
type Job struct {
	Version     int            `json:"version"`
	Name        string         `json:"name,omitempty"`
	Labels      map[string]any `json:"labels,omitempty"`
	Model       Model          `json:"model"`
	Training    Training       `json:"training,omitzero"`
	Parallelism Parallelism    `json:"parallelism,omitzero"`
	Runtime     Runtime        `json:"runtime,omitzero"`
	Target      Target         `json:"target,omitzero"`
}

// Model names the network: exactly one of ID, Config, Architecture,
// Parameters and Graph.
type Model struct {
	ID                    string         `json:"id,omitempty"`
	Config                map[string]any `json:"config,omitempty"`
	Architecture          map[string]any `json:"architecture,omitempty"`
	Parameters            Count          `json:"parameters,omitzero"`
	Graph                 map[string]any `json:"graph,omitempty"`
	Implementation        string         `json:"implementation,omitempty"`
	ImplementationVersion string         `json:"implementation_version,omitempty"`
}

// Training is what happens in a step.
type Training struct {
	Method          string        `json:"method,omitempty"`
	ModulesToTrain  []string      `json:"modules_to_train,omitempty"`
	Adapter         *Adapter      `json:"adapter,omitempty"`
	Quantization    *Quantization `json:"quantization,omitempty"`
	QAT             *QAT          `json:"qat,omitempty"`
	Precision       Precision     `json:"precision,omitempty"`
	WeightsDType    DType         `json:"weights_dtype,omitempty"`
	MasterWeights   string        `json:"master_weights,omitempty"`
	GradientDType   DType         `json:"gradient_dtype,omitempty"`
	GradScaler      Toggle        `json:"grad_scaler,omitzero"`
	FP8             *FP8          `json:"fp8,omitempty"`
	Optimizer       Optimizer     `json:"optimizer,omitzero"`
	OptimizerStep   *bool         `json:"optimizer_step,omitempty"`
	MicroBatchSize  int           `json:"micro_batch_size,omitempty"`
	GradAccumSteps  int           `json:"gradient_accumulation_steps,omitempty"`
	SequenceLength  int           `json:"sequence_length,omitempty"`
	SequenceUnit    string        `json:"sequence_length_unit,omitempty"`
	DecoderLength   int           `json:"decoder_sequence_length,omitempty"`
	SequenceLengths *Lengths      `json:"sequence_lengths,omitempty"`
	Packing         string        `json:"packing,omitempty"`
	Padding         string        `json:"padding,omitempty"`
	ImageSize       []int         `json:"image_size,omitempty"`
	ImageIsLatent   bool          `json:"image_size_is_latent,omitempty"`
	MaxPixels       int           `json:"max_pixels,omitempty"`
	NumFrames       int           `json:"num_frames,omitempty"`
	Channels        int           `json:"channels,omitempty"`
	LatentShape     []int         `json:"latent_shape,omitempty"`
	LatentTokens    int           `json:"latent_tokens,omitempty"`
	TextTokens      int           `json:"text_tokens,omitempty"`
	MultiCrop       *MultiCrop    `json:"multi_crop,omitempty"`
	NumClasses      *int          `json:"num_classes,omitempty"` // 0 is no head; nil the model's own
	Checkpointing   Checkpointing `json:"activation_checkpointing,omitzero"`
	Attention       Attention     `json:"attention,omitzero"`
	LinearAttention string        `json:"linear_attention,omitempty"`
	FusedKernels    []string      `json:"fused_kernels,omitempty"`
	Loss            Loss          `json:"loss,omitzero"`
	Losses          []string      `json:"losses,omitempty"`
	AuxLogits       bool          `json:"aux_logits,omitempty"`
	LabelSmoothing  bool          `json:"label_smoothing,omitempty"`
	Mixup           bool          `json:"mixup,omitempty"`
	DropoutDisabled bool          `json:"dropout_disabled,omitempty"`
	DropPath        *float64      `json:"drop_path,omitempty"`
	InputGrad       bool          `json:"input_requires_grad,omitempty"`
	Compile         bool          `json:"compile,omitempty"`
	GradClipping    *bool         `json:"gradient_clipping,omitempty"`
	ZeroGradToNone  *bool         `json:"zero_grad_set_to_none,omitempty"`
	ZeroGradAt      string        `json:"zero_grad_position,omitempty"`
	GradsResident   bool          `json:"gradients_resident_before_step,omitempty"`
	MemoryFormat    string        `json:"memory_format,omitempty"`
	Conditioning    string        `json:"conditioning,omitempty"`
	ResidentModules []Resident    `json:"resident_modules,omitempty"`
	BlocksToSwap    int           `json:"blocks_to_swap,omitempty"`
	ControlNet      *ControlNet   `json:"controlnet,omitempty"`
	Teacher         *Teacher      `json:"teacher,omitempty"`
	ProjectionHead  *Projection   `json:"projection_head,omitempty"`
	Objective       string        `json:"objective,omitempty"`
	ReferenceModel  string        `json:"reference_model,omitempty"`
	Generation      *Generation   `json:"generation,omitempty"`
	EMA             *EMA          `json:"ema,omitempty"`
	Evaluation      *Evaluation   `json:"evaluation,omitempty"`
	Load            *Load         `json:"load,omitempty"`
	CheckpointSave  string        `json:"checkpoint_save,omitempty"`
}

// Adapter is a low-rank adapter beside frozen weights. A nil TargetModules
// with AllLinear false takes the family's own default.
type Adapter struct {
	Rank          int      `json:"rank,omitempty"`
	Alpha         float64  `json:"alpha,omitempty"`
	Dropout       float64  `json:"dropout,omitempty"`
	TargetModules Targets  `json:"target_modules,omitzero"`
	DType         DType    `json:"dtype,omitempty"`
	ModulesToSave []string `json:"modules_to_save,omitempty"`
	FusedQKV      bool     `json:"fused_qkv,omitempty"`
	UseRSLoRA     bool     `json:"use_rslora,omitempty"`
}

// Quantization is how a frozen base is stored. Nil is not at all.
type Quantization struct {
	Type          string   `json:"type,omitempty"`
	GroupSize     int      `json:"group_size,omitempty"`
	StorageDType  DType    `json:"storage_dtype,omitempty"`
	QuantizedHead *bool    `json:"quantized_head,omitempty"`
	KBitPrepare   *bool    `json:"kbit_prepare,omitempty"`
	KBitRecast    *Recast  `json:"kbit_recast,omitempty"`
	SkipModules   []string `json:"skip_modules,omitempty"`
	Library       string   `json:"library,omitempty"`
}

// Recast names modules whose type is set again after k-bit preparation.
type Recast struct {
	Modules []string `json:"modules,omitempty"`
	DType   DType    `json:"dtype,omitempty"`
}

// QAT is fake-quantised training. Nil is none.
type QAT struct {
	Weights     string `json:"weights,omitempty"`
	Activations string `json:"activations,omitempty"`
	Library     string `json:"library,omitempty"`
}

// FP8 is the recipe of fp8-mixed precision.
type FP8 struct {
	Recipe    string `json:"recipe,omitempty"`
	AllGather bool   `json:"all_gather,omitempty"`
}

// Optimizer is the update rule and whose code runs it.
type Optimizer struct {
	Name           string   `json:"name,omitempty"`
	Implementation string   `json:"implementation,omitempty"` // foreach | fused | for-loop
	Library        string   `json:"library,omitempty"`
	StateBits      int      `json:"state_bits,omitempty"`
	StateDType     DType    `json:"state_dtype,omitempty"`
	Paged          bool     `json:"paged,omitempty"`
	Momentum       *float64 `json:"momentum,omitempty"`
	Nesterov       bool     `json:"nesterov,omitempty"`
	InBackward     bool     `json:"in_backward,omitempty"`
	CPUOffload     bool     `json:"cpu_offload,omitempty"`
	Rank           int      `json:"rank,omitempty"`
	UpdateEvery    int      `json:"update_every,omitempty"`
	TargetModules  []string `json:"target_modules,omitempty"`
	MuonModules    []string `json:"muon_modules,omitempty"`
}

// Lengths describes samples of varying length, in tokens.
type Lengths struct {
	Longest int     `json:"longest,omitempty"`
	Mean    float64 `json:"mean,omitempty"`
	P95     float64 `json:"p95,omitempty"`
}

// MultiCrop is the crops of self-supervised vision training.
type MultiCrop struct {
	Global *Crops `json:"global,omitempty"`
	Local  *Crops `json:"local,omitempty"`
}

// Crops is a number of crops of one size.
type Crops struct {
	Count int   `json:"count,omitempty"`
	Size  []int `json:"size,omitempty"`
}

// Checkpointing says which activations are recomputed in backward.
type Checkpointing struct {
	Mode      string   `json:"mode,omitempty"` // none | full | selective
	Every     int      `json:"every,omitempty"`
	Reentrant *bool    `json:"reentrant,omitempty"`
	Policy    string   `json:"policy,omitempty"`
	Modules   []string `json:"modules,omitempty"`
	Method    string   `json:"method,omitempty"`
	NumLayers int      `json:"num_layers,omitempty"`
}

// Attention is the kernel asked for and, under sdpa, the backend if one is
// forced: flash, efficient, math or cudnn.
type Attention struct {
	Kernel  string `json:"kernel,omitempty"`
	Backend string `json:"backend,omitempty"`
}

// Loss is the path from hidden states to the loss.
type Loss struct {
	Kind           string `json:"kind,omitempty"` // default | chunked | fused-linear
	Upcast         string `json:"upcast,omitempty"`
	Chunks         int    `json:"chunks,omitempty"`
	ChunkTokens    int    `json:"chunk_tokens,omitempty"`
	KeepsAllChunks *bool  `json:"keeps_all_chunks,omitempty"`
	ShiftCopy      *bool  `json:"shift_copy,omitempty"`
	HoldsLogits    *bool  `json:"holds_logits,omitempty"`
}

// Resident is a module kept on the card beside the trained model.
type Resident struct {
	Name       string `json:"name"`
	Parameters int64  `json:"parameters"`
	DType      DType  `json:"dtype,omitempty"`
	Trained    bool   `json:"trained,omitempty"`
	RunsInStep bool   `json:"runs_in_step,omitempty"`
}

// ControlNet is a trained copy beside a frozen diffusion model.
type ControlNet struct {
	CopyOf              string `json:"copy_of,omitempty"`
	TrainableParameters int64  `json:"trainable_parameters,omitempty"`
}

// Teacher is the model distilled from.
type Teacher struct {
	Copy      string `json:"copy,omitempty"`
	ForwardOn string `json:"forward_on,omitempty"`
}

// Projection is the head of self-supervised training.
type Projection struct {
	Hidden     []int `json:"hidden,omitempty"`
	Bottleneck int   `json:"bottleneck,omitempty"`
	Output     int   `json:"output,omitempty"`
	BatchNorm  bool  `json:"batch_norm,omitempty"`
}

// Generation is the sampling phase of preference and reinforcement learning.
type Generation struct {
	PromptLength         int     `json:"prompt_length,omitempty"`
	CompletionLength     int     `json:"completion_length,omitempty"`
	NumGenerations       int     `json:"num_generations,omitempty"`
	EngineMemoryFraction float64 `json:"engine_memory_fraction,omitempty"`
}

// EMA is an averaged copy of the weights. Nil is none.
type EMA struct {
	Device string `json:"device,omitempty"`
	DType  DType  `json:"dtype,omitempty"`
}

// Evaluation is the pass between training steps. Nil is none.
type Evaluation struct {
	MicroBatchSize int   `json:"micro_batch_size,omitempty"`
	BatchesHeld    int   `json:"batches_held,omitempty"`
	LogitsKept     *bool `json:"logits_kept,omitempty"`
}

// Load is how the weights reach the card. Nil is the library's own way.
type Load struct {
	DType                DType      `json:"dtype,omitempty"`
	OnDevice             *bool      `json:"on_device,omitempty"`
	AlsoResident         []Resident `json:"also_resident,omitempty"`
	FreedBeforeFirstStep *bool      `json:"freed_before_first_step,omitempty"`
}
