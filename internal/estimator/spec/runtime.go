package spec

import "memplan/internal/units"

// Runtime is the software that runs the job.
type Runtime struct {
	Framework        string            `json:"framework,omitempty"`
	FrameworkVersion string            `json:"framework_version,omitempty"`
	CUDAVersion      string            `json:"cuda_version,omitempty"`
	Trainer          string            `json:"trainer,omitempty"`
	TrainerVersion   string            `json:"trainer_version,omitempty"`
	LibraryVersions  map[string]string `json:"library_versions,omitempty"`
	HoldsOutputs     Toggle            `json:"holds_outputs,omitzero"`
	Allocator        AllocatorSettings `json:"allocator,omitzero"`
	CuBLASWorkspace  string            `json:"cublas_workspace_config,omitempty"`
	CuDNNBenchmark   bool              `json:"cudnn_benchmark,omitempty"`
	CuDNNDeterminist bool              `json:"cudnn_deterministic,omitempty"`
	SyncBatchNorm    bool              `json:"sync_batch_norm,omitempty"`
	TensorFlow       *TensorFlow       `json:"tensorflow,omitempty"`
	JAX              *JAX              `json:"jax,omitempty"`
}

// AllocatorSettings is PYTORCH_CUDA_ALLOC_CONF.
type AllocatorSettings struct {
	Backend                    string   `json:"backend,omitempty"`
	ExpandableSegments         bool     `json:"expandable_segments,omitempty"`
	MaxSplitSizeMB             *float64 `json:"max_split_size_mb,omitempty"`
	RoundupPower2Divisions     any      `json:"roundup_power2_divisions,omitempty"` // a number, or the list form as text
	GarbageCollectionThreshold *float64 `json:"garbage_collection_threshold,omitempty"`
}

// TensorFlow is how TensorFlow takes memory.
type TensorFlow struct {
	MemoryGrowth   bool    `json:"memory_growth,omitempty"`
	MemoryLimitMiB float64 `json:"memory_limit_mib,omitempty"`
}

// JAX is how JAX takes memory.
type JAX struct {
	Preallocate    *bool   `json:"preallocate,omitempty"`
	MemoryFraction float64 `json:"memory_fraction,omitempty"`
}

// Target is the card the job is meant for.
type Target struct {
	GPU               string      `json:"gpu,omitempty"`
	Device            string      `json:"device,omitempty"`
	Count             int         `json:"count,omitempty"`
	MemoryGiB         units.Bytes `json:"memory_gib,omitempty"`
	ComputeCapability string      `json:"compute_capability,omitempty"`
	MIGProfile        string      `json:"mig_profile,omitempty"`
	Sharing           string      `json:"sharing,omitempty"`
	OtherProcessesGiB units.Bytes `json:"other_processes_gib,omitempty"`
	HeadroomGiB       units.Bytes `json:"headroom_gib,omitempty"`
}

// Device is what the estimator needs to know of a card: no names are looked up
// below the planner.
type Device struct {
	Key               string      // catalogue key, or empty for a card given by its memory
	Name              string      // as people say it
	Vendor            string      // nvidia, amd, other
	Architecture      string      // Ampere, Hopper
	ComputeCapability Version     // 8.0 for A100; zero when unknown
	Total             units.Bytes // cudaMemGetInfo total
	Other             units.Bytes // held by other processes
	Headroom          units.Bytes // the user wants this left free
	Multiprocessors   int         // zero when unknown
}

// Usable is what one process can get: the total less other processes and the
// user's headroom.
func (d Device) Usable() units.Bytes { return max(0, d.Total-d.Other-d.Headroom) }
