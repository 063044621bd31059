package spec

import "memplan/internal/units"

// Coefficient is a named quantity that cannot be derived: a value and its
// spread in bytes, and where they come from.
type Coefficient struct {
	Name   string      `json:"name"`
	Mean   units.Bytes `json:"mean_bytes"`
	SD     units.Bytes `json:"sd_bytes"`
	Source string      `json:"source"`
}

// Ratio is a named quantity without a unit: bytes for each byte of something.
type Ratio struct {
	Name   string  `json:"name"`
	Mean   float64 `json:"mean"`
	SD     float64 `json:"sd"`
	Source string  `json:"source"`
}

// Modules is what a process holds more where it loads every kernel of its
// libraries when they are opened, and not each at its first use. Nobody says so
// in a job: before a measured run tells, it is so with a probability.
type Modules struct {
	Probability float64
	Coefficient
}

// Coefficients are the calibrated quantities in force.
type Coefficients struct {
	Calibration   string      // cal_…, or "prior"
	Context       Coefficient // CUDA context and kernels of one process, loaded as they are used
	Modules       Modules     // the kernels that are loaded unused
	NCCL          Coefficient // communicator buffers, with several ranks
	ConvWorkspace Ratio       // cuDNN's workspace, of the operands' bytes: see graph.Device
	EngineBias    Ratio       // what the engine is known to be wrong by, of the simulated bytes
	EngineError   float64     // relative spread of the engine's own error
	CacheError    float64     // the same of what the allocator reserves, where that is more: what its cache keeps

	// Joint is the covariance of context, NCCL (bytes), convolution workspace
	// and engine bias, where they were found together; zero: they are
	// independent.
	Joint [4][4]float64
}

// Calibrated says whether measured runs inform the coefficients.
func (c Coefficients) Calibrated() bool { return c.Calibration != "" && c.Calibration != "prior" }

// Outside is what a process is expected to hold outside the caching allocator.
func (c Coefficients) Outside() units.Bytes { return c.Context.Mean + c.NCCL.Mean }

// Variance is that of context + nccl + workspace × conv + simulated × bias: the
// spread of a sum in which the workspace stands conv times, and the simulated
// bytes are what the bias is of. Bytes squared.
func (c Coefficients) Variance(conv, simulated float64) float64 {
	weight := [4]float64{1, 1, conv, simulated}
	if c.NCCL.Mean == 0 {
		weight[1] = 0
	}
	joint := c.Joint
	if joint == ([4][4]float64{}) {
		for i, sd := range []float64{float64(c.Context.SD), float64(c.NCCL.SD), c.ConvWorkspace.SD, c.EngineBias.SD} {
			joint[i][i] = sd * sd
		}
	}
	sum := 0.0
	for i, row := range joint {
		for j, x := range row {
			sum += weight[i] * weight[j] * x
		}
	}
	return max(0, sum)
}
