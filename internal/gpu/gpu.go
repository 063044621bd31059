package gpu

import (
	"context"
	"errors"
	"os"

	"memplan/internal/fault"
	"memplan/internal/gpu/cuda"
	"memplan/internal/planner"
)

// Config is where cards are looked for. The zero value is this host.
type Config struct {
	NVML string // path of libnvidia-ml; "": the loader finds it
	CUDA string // path of libcuda; "": the loader finds it
	Sys  string // the kernel's files about devices; "": /sys
	Proc string // the kernel's files about processes; "": /proc
	Host string // the host's name; "": as the system gives it
}

// Lister lists the cards of a host. It is safe for use by several goroutines.
type Lister struct {
	config Config
	nvidia nvidia
}

// nvidia reads cards through NVML. errAbsent where that cannot be loaded.
type nvidia interface {
	list() ([]planner.Device, error)
}

// errAbsent says that a library is not there: its cards are looked for by
// another way.
var errAbsent = errors.New("not installed")

// New returns a lister. It loads nothing yet.
func New(c Config) *Lister {
	if c.Sys == "" {
		c.Sys = "/sys"
	}
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if c.Host == "" {
		c.Host, _ = os.Hostname() // a card of a host without a name is still listed
	}
	return &Lister{config: c, nvidia: newNVML(c)}
}

// List implements planner.Devices.
func (l *Lister) List(ctx context.Context) ([]planner.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	all, err := l.nvidia.list()
	if errors.Is(err, errAbsent) {
		all, err = l.bareCUDA()
	}
	amd := l.amd()
	switch {
	case len(all)+len(amd) > 0:
	case errors.Is(err, errAbsent):
		return nil, fault.New(fault.Unavailable, "No NVIDIA driver was found on this host (libnvidia-ml.so.1 cannot be loaded), and no AMD card.")
	case err != nil:
		return nil, err
	default:
		return nil, fault.New(fault.Unavailable, "The NVIDIA driver of this host lists no card.")
	}
	all = append(all, amd...)
	for i := range all {
		all[i].Host = l.config.Host
	}
	return all, nil
}

// bareCUDA lists what the CUDA driver knows, where it came without NVML.
func (l *Lister) bareCUDA() ([]planner.Device, error) {
	driver, err := cuda.Open(l.config.CUDA)
	if err != nil {
		return nil, errAbsent
	}
	cards, err := driver.Devices()
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, "gpu: CUDA", err)
	}
	var all []planner.Device
	for _, c := range cards {
		all = append(all, planner.Device{
			ID: c.UUID, Index: c.Index, Name: c.Name, CUDA: driver.Version(),
			// What is used cannot be asked without a context.
			Memory: planner.DeviceMemory{Total: c.Total, Free: c.Total},
		})
	}
	return all, nil
}
