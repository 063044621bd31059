package estimator

import (
	"strings"

	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// multiprocessors are the streaming multiprocessors of cards by the beginning
// of their catalogue key (vendor data sheets). They decide how far a reduction
// is spread and so its staging buffer: megabytes at most.
var multiprocessors = []struct {
	key string
	n   int64
}{
	{"P100", 56},
	{"V100", 80},
	{"T4", 40},
	{"A100", 108},
	{"A30", 56},
	{"A10G", 80},
	{"A10", 72},
	{"A40", 84},
	{"RTX-A6000", 84},
	{"RTX-A5000", 64},
	{"RTX-A4000", 48},
	{"L40", 142},
	{"L4", 58},
	{"RTX-6000-Ada", 142},
	{"H100-PCIE", 114},
	{"H100", 132},
	{"H200", 132},
	{"H20", 78},
	{"GH200", 132},
	{"B200", 148},
	{"GB200", 148},
	{"B300", 148},
	{"RTX-5090", 170},
	{"RTX-4090", 128},
	{"RTX-4080", 76},
	{"RTX-3090", 82},
	{"RTX-3080", 68},
	{"RTX-2080-Ti", 68},
}

// cardFor is what kernels ask of a device.
func cardFor(d spec.Device, co spec.Coefficients) graph.Device {
	g := graph.Device{
		Capability: d.ComputeCapability, Multiprocessors: int64(d.Multiprocessors), Total: int64(d.Total), ThreadsPerSM: 2048,
		ConvWorkspace: max(0, co.ConvWorkspace.Mean),
	}
	if g.Capability == (spec.Version{}) {
		g.Capability = spec.Version{8, 0}
	}
	switch c := g.Capability; {
	case c[0] == 7 && c[1] == 5:
		g.ThreadsPerSM = 1024
	case c[0] == 8 && c[1] > 0, c[0] == 12:
		g.ThreadsPerSM = 1536
	}
	if g.Multiprocessors == 0 {
		g.Multiprocessors = 108
		for _, m := range multiprocessors {
			if strings.HasPrefix(strings.ToUpper(d.Key), strings.ToUpper(m.key)) {
				g.Multiprocessors = m.n
				break
			}
		}
	}
	return g
}
