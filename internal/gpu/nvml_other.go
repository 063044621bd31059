//go:build !linux || !cgo

package gpu

import "memplan/internal/planner"

// none stands for NVML in builds that cannot load it: on other systems, and
// without cgo.
type none struct{}

func newNVML(Config) nvidia { return none{} }

func (none) list() ([]planner.Device, error) { return nil, errAbsent }
