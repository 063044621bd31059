package spec

import "fmt"

// Parallelism is how the job is spread over ranks. Sizes that are unset are 1.
type Parallelism struct {
	Data             int         `json:"data,omitempty"`
	Sharding         string      `json:"sharding,omitempty"`
	Replicate        int         `json:"replicate,omitempty"`
	DDP              *DDP        `json:"ddp,omitempty"`
	FSDP             *FSDP       `json:"fsdp,omitempty"`
	Zero             *Zero       `json:"zero,omitempty"`
	Tensor           int         `json:"tensor,omitempty"`
	SequenceParallel bool        `json:"sequence_parallel,omitempty"`
	AsyncTensor      bool        `json:"async_tensor,omitempty"`
	Pipeline         int         `json:"pipeline,omitempty"`
	PipelineSchedule string      `json:"pipeline_schedule,omitempty"`
	VirtualPipeline  int         `json:"virtual_pipeline,omitempty"`
	PipelineLayout   string      `json:"pipeline_layout,omitempty"`
	MicrobatchGroup  int         `json:"microbatch_group_size,omitempty"`
	Context          int         `json:"context,omitempty"`
	ContextComm      string      `json:"context_comm,omitempty"`
	Expert           int         `json:"expert,omitempty"`
	ExpertTensor     int         `json:"expert_tensor,omitempty"`
	ExpertLoad       *ExpertLoad `json:"expert_load,omitempty"`
	Megatron         *Megatron   `json:"megatron,omitempty"`
	Offload          []string    `json:"offload,omitempty"`
	OffloadTo        string      `json:"offload_to,omitempty"`
	GPUsPerNode      int         `json:"gpus_per_node,omitempty"`
}

// Ranks is the number of processes: data × tensor × pipeline × context.
func (p Parallelism) Ranks() int {
	n := 1
	for _, x := range []int{p.Data, p.Tensor, p.Pipeline, p.Context} {
		n *= max(x, 1)
	}
	return n
}

// DDP is torch's DistributedDataParallel.
type DDP struct {
	GradientAsBucketView bool    `json:"gradient_as_bucket_view,omitempty"`
	BucketCapMB          float64 `json:"bucket_cap_mb,omitempty"`
	StaticGraph          bool    `json:"static_graph,omitempty"`
	FindUnusedParameters bool    `json:"find_unused_parameters,omitempty"`
}

// FSDP is torch's fully sharded data parallelism, either generation.
type FSDP struct {
	Version             int      `json:"version,omitempty"`
	Wrap                *Wrap    `json:"wrap,omitempty"`
	ReduceDType         DType    `json:"reduce_dtype,omitempty"`
	ReshardAfterForward *bool    `json:"reshard_after_forward,omitempty"`
	NoSyncAccumulation  bool     `json:"no_sync_accumulation,omitempty"`
	BackwardPrefetch    string   `json:"backward_prefetch,omitempty"`
	LimitAllGathers     *bool    `json:"limit_all_gathers,omitempty"`
	Strategy            string   `json:"strategy,omitempty"`
	ShardedSeparately   []string `json:"sharded_separately,omitempty"`
	Ignored             []string `json:"ignored,omitempty"`
	QuantisedStorage    string   `json:"quantised_storage,omitempty"`
}

// Wrap is what FSDP makes a unit: decoder layers, named modules, or modules of
// at least so many parameters.
type Wrap struct {
	Policy        string // decoder-layer
	Modules       []string
	MinParameters float64
}

// Zero is DeepSpeed's ZeRO. Sizes are elements; Auto takes the integration's.
type Zero struct {
	ReduceBucketSize          AutoNumber `json:"reduce_bucket_size,omitzero"`
	AllGatherBucketSize       AutoNumber `json:"allgather_bucket_size,omitzero"`
	OverlapComm               *bool      `json:"overlap_comm,omitempty"`
	ContiguousGradients       *bool      `json:"contiguous_gradients,omitempty"`
	SubGroupSize              AutoNumber `json:"sub_group_size,omitzero"`
	ShardOver                 int        `json:"shard_over,omitempty"`
	PrefetchBucketSize        AutoNumber `json:"stage3_prefetch_bucket_size,omitzero"`
	ParamPersistenceThreshold AutoNumber `json:"stage3_param_persistence_threshold,omitzero"`
	MaxLiveParameters         AutoNumber `json:"stage3_max_live_parameters,omitzero"`
	MaxReuseDistance          AutoNumber `json:"stage3_max_reuse_distance,omitzero"`
}

// ExpertLoad is how routed tokens spread over expert ranks: balanced, worst, or the
// fullest rank's share as a factor of the mean.
type ExpertLoad struct {
	Kind   string
	Factor float64
}

// The kinds of ExpertLoad.
const (
	BalancedLoad = "balanced"
	WorstLoad    = "worst"
)

// String says it in a sentence.
func (e ExpertLoad) String() string {
	switch e.Kind {
	case BalancedLoad:
		return "evenly"
	case WorstLoad:
		return "as unevenly as can be"
	}
	return fmt.Sprintf("up to %g times the even share", e.Factor)
}

// Megatron is Megatron-LM's own settings.
type Megatron struct {
	TransformerImplementation  string `json:"transformer_implementation,omitempty"`
	GradientAccumulationFusion *bool  `json:"gradient_accumulation_fusion,omitempty"`
	OverlapGradReduce          bool   `json:"overlap_grad_reduce,omitempty"`
	OverlapParamGather         bool   `json:"overlap_param_gather,omitempty"`
	OverlapP2PWarmupFlush      bool   `json:"overlap_p2p_warmup_flush,omitempty"`
	TPCommOverlap              bool   `json:"tp_comm_overlap,omitempty"`
	BiasDropoutFusion          *bool  `json:"bias_dropout_fusion,omitempty"`
}
