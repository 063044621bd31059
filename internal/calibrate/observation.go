package calibrate

// Names of the coefficients that stand in every fit.
const (
	Context       = "context"        // bytes of one process
	NCCL          = "nccl"           // of the prior for the job's communicators
	ConvWorkspace = "conv_workspace" // of a convolution's operands
	EngineBias    = "engine_bias"    // of the simulated bytes
)

// Observation is one measured figure beside what the engine says of it.
type Observation struct {
	Run       string             // the run it was measured in
	Ladder    string             // runs of one table or sweep, which are held out together
	Group     string             // whose engine error it shares
	Measured  float64            // bytes
	Rounding  float64            // the unit it was printed in, bytes
	Simulated float64            // inside the caching allocator, without the terms below; bytes
	Terms     map[string]float64 // what each coefficient is multiplied with
}

// Belief is a normal distribution, and where it comes from.
type Belief struct {
	Mean   float64 `json:"mean"`
	SD     float64 `json:"sd"`
	Source string  `json:"source,omitempty"`
}

// Coefficient is a named quantity before and after the runs were seen.
type Coefficient struct {
	Name      string `json:"name"`
	Unit      string `json:"unit"` // bytes, or ratio
	Prior     Belief `json:"prior"`
	Posterior Belief `json:"posterior"`
}

// GroupError is the scale of the engine's relative error in a group of jobs: of
// a Student t with Freedom degrees of freedom.
type GroupError struct {
	Group string  `json:"group"`
	Scale float64 `json:"scale"`
	N     int     `json:"n"`
}
