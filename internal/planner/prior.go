package planner

import (
	"fmt"
	"math"

	"memplan/internal/catalog"
	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// priorCalibration names the coefficients that no measured run informs.
const priorCalibration = "prior"

// Relative standard deviations of the engine's own error before any
// calibration. 1.645 standard deviations reach the 5th and 95th percentile.
const (
	engineErrorPrior = 0.01         // the floor, also under calibration
	engineErrorOther = 0.10         // an AMD card or one known only by its size: kernels not checked
	engineErrorSize  = 0.25 / 1.645 // a model known by its parameter count: 25 % either way
)

// Communicator buffers that a process group holds outside the allocator, as
// reported for A100 with NVLink: 544 MB in a group of two, 688 MB in a larger
// one. Reports reach from half to beyond twice that, which the spread covers.
const (
	ncclPair   = 544 * units.MB
	ncclGroup  = 688 * units.MB
	ncclSource = "prior: 544 MB (two ranks) or 688 MB (more) a communicator, reported for A100 with NVLink; one communicator for each dimension of the parallelism"
)

// coefficientsFor returns the priors of a job on a card.
func coefficientsFor(c catalog.Context, p spec.Parallelism) spec.Coefficients {
	return spec.Coefficients{
		Calibration: priorCalibration,
		Context: spec.Coefficient{
			Name:   "context",
			Mean:   c.Mean + c.KernelsMean,
			SD:     units.Bytes(math.Hypot(float64(c.SD), float64(c.KernelsSD))),
			Source: c.Source,
		},
		Modules:       modulesPrior(),
		NCCL:          ncclPrior(p),
		ConvWorkspace: convPrior(),
		CacheError:    cachePrior(p),
	}
}

// cachePrior is the relative spread of what the caching allocator reserves: it
// keeps segments of moments that no steady step shows, and with sharding those
// that other streams used. Published processes of transformers on A100
// (fms-acceleration's benchmarks) lie that far from the estimate where what is
// allocated agrees to 0.1 %.
func cachePrior(p spec.Parallelism) float64 {
	if p.Ranks() > 1 {
		return 0.10
	}
	return 0.05
}

// modulesPrior is what a process holds more that loads every kernel at once:
// torch has asked for lazy loading since 1.13, which the environment, a
// profiler or an older driver undoes.
func modulesPrior() spec.Modules {
	return spec.Modules{
		Probability: 0.25,
		Coefficient: spec.Coefficient{
			Name: "modules", Mean: 900 * units.MiB, SD: 300 * units.MiB,
			Source: "prior: processes that load all kernels hold 1.3 GiB (V100, CUDA 11.2) to 1.7 GB (RTX 3090, torch 1.8) by public reports, against 0.3 to 0.5 GB; how many do so is a guess",
		},
	}
}

// convPrior is what cuDNN's tensor-core kernels copy: the operands in the other
// layout, some of them or all, or none where another kernel is faster.
func convPrior() spec.Ratio {
	return spec.Ratio{
		Name: "conv_workspace", Mean: 1, SD: 0.5,
		Source: "prior: kernels of tensor cores want channels last and copy input, filter and result (cuDNN developer guide, tensor core layouts); which kernel runs is decided on the card",
	}
}

// ncclPrior sums a communicator for each dimension with more than one rank; its
// spread is half the sum.
func ncclPrior(p spec.Parallelism) spec.Coefficient {
	nccl := spec.Coefficient{Name: "nccl", Source: ncclSource}
	for _, ranks := range []int{p.Data, p.Tensor, p.Pipeline, p.Context, p.Expert} {
		switch {
		case ranks == 2:
			nccl.Mean += ncclPair
		case ranks > 2:
			nccl.Mean += ncclGroup
		}
	}
	if nccl.Mean == 0 {
		nccl.Source = "one rank: no communicator"
	}
	nccl.SD = nccl.Mean / 2
	return nccl
}

// unknownContext is the prior for a card no architecture is known of: from the
// least to the most of any architecture.
func unknownContext(cards []catalog.GPU) catalog.Context {
	low, high := units.Bytes(math.MaxInt64), units.Bytes(0)
	for _, g := range cards {
		low = min(low, g.Context.Mean)
		high = max(high, g.Context.Mean+g.Context.KernelsMean)
	}
	return catalog.Context{
		Mean:   (low + high) / 2,
		SD:     (high - low) / 2,
		Source: fmt.Sprintf("prior: architecture unknown; the catalogue's cards lie between %s and %s", low, high),
	}
}
