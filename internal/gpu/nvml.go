//go:build linux && cgo

package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// library reads cards through NVML, which it loads at the first question.
type library struct {
	api  nvml.Interface
	proc string

	mu     sync.Mutex
	loaded bool
}

func newNVML(c Config) nvidia {
	var options []nvml.LibraryOption
	if c.NVML != "" {
		options = append(options, nvml.WithLibraryPath(c.NVML))
	}
	return &library{api: nvml.New(options...), proc: c.Proc}
}

// list implements nvidia.
func (l *library) list() ([]planner.Device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		switch ret := l.api.Init(); ret {
		case nvml.SUCCESS:
			l.loaded = true
		case nvml.ERROR_LIBRARY_NOT_FOUND:
			return nil, errAbsent
		default:
			return nil, l.failed("nvmlInit", ret)
		}
	}
	if l.missing("nvmlDeviceGetUUID") != nil {
		return nil, errAbsent // some other library under this name
	}
	n, ret := l.api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, l.failed("nvmlDeviceGetCount", ret)
	}
	driver, cuda := l.versions()
	var all []planner.Device
	for i := range n {
		device, ret := l.api.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return nil, l.failed(fmt.Sprintf("card %d", i), ret)
		}
		d, err := l.describe(device)
		if err != nil {
			return nil, err
		}
		d.Index, d.Driver, d.CUDA = i, driver, cuda
		all = append(all, d)
	}
	return all, nil
}

// missing is nil where the library has a function: older drivers lack some, and
// a call of what is not there ends the process.
func (l *library) missing(symbol string) error { return l.api.Extensions().LookupSymbol(symbol) }

// has reports whether the library has a function.
func (l *library) has(symbol string) bool { return l.missing(symbol) == nil }

// failed is a refusal of NVML as an error for users.
func (l *library) failed(op string, ret nvml.Return) error {
	text := fmt.Sprintf("NVML error %d", ret)
	if l.has("nvmlErrorString") {
		text = ret.Error()
	}
	return fault.New(fault.Unavailable, "The NVIDIA driver does not answer (%s: %s).", op, text)
}

// versions returns the driver's version and the newest CUDA it runs.
func (l *library) versions() (driver, cuda string) {
	if v, ret := l.api.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		driver = v
	}
	if v, ret := l.api.SystemGetCudaDriverVersion(); ret == nvml.SUCCESS {
		cuda = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	return driver, cuda
}

// describe reads one card. Only its name, its id and its memory must be known.
func (l *library) describe(device nvml.Device) (planner.Device, error) {
	var d planner.Device
	var ret nvml.Return
	if d.ID, ret = device.GetUUID(); ret != nvml.SUCCESS {
		return d, l.failed("nvmlDeviceGetUUID", ret)
	}
	if d.Name, ret = device.GetName(); ret != nvml.SUCCESS {
		return d, l.failed("nvmlDeviceGetName", ret)
	}
	if d.Memory, ret = l.memory(device); ret != nvml.SUCCESS {
		return d, l.failed("nvmlDeviceGetMemoryInfo", ret)
	}
	if l.has("nvmlDeviceGetEccMode") {
		if now, _, ret := device.GetEccMode(); ret == nvml.SUCCESS {
			d.ECC = onOff(now == nvml.FEATURE_ENABLED)
		}
	}
	if l.has("nvmlDeviceGetUtilizationRates") {
		if u, ret := device.GetUtilizationRates(); ret == nvml.SUCCESS {
			percent := int(u.Gpu)
			d.Utilisation = &percent
		}
	}
	d.MIG = l.slices(device)
	d.Processes = l.processes(device)
	return d, nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// memory reads a card's memory; from drivers before 510, what they keep for
// themselves counts as used.
func (l *library) memory(device nvml.Device) (planner.DeviceMemory, nvml.Return) {
	if l.has("nvmlDeviceGetMemoryInfo_v2") {
		if m, ret := device.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			return planner.DeviceMemory{
				Total: units.Bytes(m.Total), Used: units.Bytes(m.Used), Free: units.Bytes(m.Free), Reserved: units.Bytes(m.Reserved),
			}, ret
		}
	}
	m, ret := device.GetMemoryInfo()
	return planner.DeviceMemory{Total: units.Bytes(m.Total), Used: units.Bytes(m.Used), Free: units.Bytes(m.Free)}, ret
}

// slices reads whether a card is cut, and into what.
func (l *library) slices(device nvml.Device) planner.MIG {
	if !l.has("nvmlDeviceGetMigMode") {
		return planner.MIG{}
	}
	now, _, ret := device.GetMigMode()
	if ret != nvml.SUCCESS {
		return planner.MIG{}
	}
	mig := planner.MIG{Mode: onOff(now == nvml.DEVICE_MIG_ENABLE)}
	if mig.Mode == "off" {
		return mig
	}
	n, ret := device.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return mig
	}
	for i := range n {
		slice, ret := device.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // a place without a slice
		}
		var s planner.MIGSlice
		s.ID, ret = slice.GetUUID()
		if ret != nvml.SUCCESS {
			continue
		}
		if name, ret := slice.GetName(); ret == nvml.SUCCESS {
			_, profile, _ := strings.Cut(name, "MIG ")
			s.Name = profile
		}
		s.Memory, _ = l.memory(slice)
		mig.Slices = append(mig.Slices, s)
	}
	return mig
}

// notAvailable is what NVML answers for the memory of a process that it may not
// see.
const notAvailable = ^uint64(0)

// processes reads what holds a card's memory, computing or drawing.
func (l *library) processes(device nvml.Device) []planner.Process {
	var out []planner.Process
	seen := map[uint32]bool{}
	for _, list := range []struct {
		symbol string
		ask    func() ([]nvml.ProcessInfo, nvml.Return)
	}{
		{"nvmlDeviceGetComputeRunningProcesses", device.GetComputeRunningProcesses},
		{"nvmlDeviceGetGraphicsRunningProcesses", device.GetGraphicsRunningProcesses},
	} {
		if !l.has(list.symbol) {
			continue
		}
		found, ret := list.ask()
		if ret != nvml.SUCCESS {
			continue
		}
		for _, p := range found {
			if seen[p.Pid] {
				continue // it does both
			}
			seen[p.Pid] = true
			out = append(out, l.process(p))
		}
	}
	return out
}

func (l *library) process(p nvml.ProcessInfo) planner.Process {
	folder := filepath.Join(l.proc, strconv.Itoa(int(p.Pid)))
	x := planner.Process{PID: int(p.Pid)}
	if _, err := os.Stat(folder); err == nil {
		x.Alive = true
	}
	if name, err := os.ReadFile(filepath.Join(folder, "comm")); err == nil {
		x.Name = strings.TrimSpace(string(name))
	}
	if p.UsedGpuMemory != notAvailable {
		used := units.Bytes(p.UsedGpuMemory)
		x.Used = &used
	}
	return x
}
