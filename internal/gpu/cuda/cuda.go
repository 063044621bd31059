// Package cuda asks the CUDA driver, libcuda, for what needs no framework: its
// cards, the memory that a process can get, what a context costs, and the
// granularity of physical memory. It loads the library at run time and needs no
// compiler. Names and structures are those of NVIDIA's cuda.h.
package cuda

import (
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"memplan/internal/units"
)

// ErrAbsent says that there is no CUDA driver.
var ErrAbsent = errors.New("cuda: the driver is not installed")

// Card is one card as the driver numbers it.
type Card struct {
	Index      int
	UUID       string // GPU-…
	Name       string
	Total      units.Bytes // what a process may see of its memory
	Capability string      // "9.0"
}

// Driver is a loaded libcuda.
type Driver struct {
	version int32
	calls   calls
}

// calls are the functions used, by their names in cuda.h.
type calls struct {
	init          func(flags uint32) int32
	version       func(v *int32) int32
	count         func(n *int32) int32
	get           func(dev *int32, i int32) int32
	name          func(name *byte, size int32, dev int32) int32
	uuid          func(id *[16]byte, dev int32) int32
	total         func(n *uint64, dev int32) int32
	attribute     func(v *int32, attribute int32, dev int32) int32
	createContext func(ctx *uintptr, flags uint32, dev int32) int32
	dropContext   func(ctx uintptr) int32
	memory        func(free, total *uint64) int32
	granularity   func(n *uint64, prop *allocationProp, option int32) int32
}

// allocationProp is CUmemAllocationProp: pinned memory of one device.
type allocationProp struct {
	kind, handles     int32
	locationType, dev int32
	win32             uintptr
	compression, rdma uint8
	usage             uint16
	reserved          [4]uint8
}

// Values of cuda.h.
const (
	capabilityMajor    = 75
	capabilityMinor    = 76
	pinned             = 1
	locationDevice     = 1
	granularityMinimum = 0
	granularityBest    = 1
)

// opened keeps each library loaded once: the driver cannot be unloaded.
var opened sync.Map // path → *Driver or error

// Open loads and initialises libcuda at a path, or where the loader finds it.
// ErrAbsent where there is none.
func Open(path string) (*Driver, error) {
	if path == "" {
		path = "libcuda.so.1"
	}
	if d, ok := opened.Load(path); ok {
		return d.(*Driver), nil
	}
	d, err := load(path)
	if err != nil {
		return nil, err
	}
	if code := d.calls.init(0); code != 0 {
		return nil, failure("cuInit", code)
	}
	if code := d.calls.version(&d.version); code != 0 {
		return nil, failure("cuDriverGetVersion", code)
	}
	kept, _ := opened.LoadOrStore(path, d)
	return kept.(*Driver), nil
}

// Version is the newest CUDA that the driver runs.
func (d *Driver) Version() string { return fmt.Sprintf("%d.%d", d.version/1000, d.version%1000/10) }

// Devices lists the cards.
func (d *Driver) Devices() ([]Card, error) {
	var n int32
	if code := d.calls.count(&n); code != 0 {
		return nil, failure("cuDeviceGetCount", code)
	}
	var all []Card
	for i := range n {
		c, err := d.card(i)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func (d *Driver) card(i int32) (Card, error) {
	var dev, major, minor int32
	var name [256]byte
	var id [16]byte
	var total uint64
	for _, step := range []struct {
		name string
		code int32
	}{
		{"cuDeviceGet", d.calls.get(&dev, i)},
		{"cuDeviceGetName", d.calls.name(&name[0], int32(len(name)), dev)},
		{"cuDeviceGetUuid", d.calls.uuid(&id, dev)},
		{"cuDeviceTotalMem", d.calls.total(&total, dev)},
		{"cuDeviceGetAttribute", d.calls.attribute(&major, capabilityMajor, dev)},
		{"cuDeviceGetAttribute", d.calls.attribute(&minor, capabilityMinor, dev)},
	} {
		if step.code != 0 {
			return Card{}, failure(step.name, step.code)
		}
	}
	return Card{
		Index: int(i), UUID: uuidText(id), Name: terminated(name[:]), Total: units.Bytes(total),
		Capability: fmt.Sprintf("%d.%d", major, minor),
	}, nil
}

// uuidText is an id as NVML spells it.
func uuidText(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return "GPU-" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// terminated is the text before the first NUL.
func terminated(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Facts is what the driver tells of a card by itself.
type Facts struct {
	Total       units.Bytes // of the card, as a process sees it
	FreeWithin  units.Bytes // once this process has a bare context
	Minimum     units.Bytes // granularity of physical memory
	Recommended units.Bytes
}

// Measure makes a context on a card, asks, and takes it down again.
func (d *Driver) Measure(card int) (Facts, error) {
	runtime.LockOSThread() // a context belongs to a thread
	defer runtime.UnlockOSThread()
	var dev int32
	if code := d.calls.get(&dev, int32(card)); code != 0 {
		return Facts{}, failure("cuDeviceGet", code)
	}
	var ctx uintptr
	if code := d.calls.createContext(&ctx, 0, dev); code != 0 {
		return Facts{}, failure("cuCtxCreate", code)
	}
	defer d.calls.dropContext(ctx)
	var free, total, least, best uint64
	if code := d.calls.memory(&free, &total); code != 0 {
		return Facts{}, failure("cuMemGetInfo", code)
	}
	prop := allocationProp{kind: pinned, locationType: locationDevice, dev: dev}
	for _, x := range []struct {
		into   *uint64
		option int32
	}{{&least, granularityMinimum}, {&best, granularityBest}} {
		if code := d.calls.granularity(x.into, &prop, x.option); code != 0 {
			return Facts{}, failure("cuMemGetAllocationGranularity", code)
		}
	}
	return Facts{units.Bytes(total), units.Bytes(free), units.Bytes(least), units.Bytes(best)}, nil
}

// failure is a refusal of the driver. 2 is CUDA_ERROR_OUT_OF_MEMORY.
func failure(call string, code int32) error {
	if code == 2 {
		return fmt.Errorf("%s: %w", call, ErrOutOfMemory)
	}
	return fmt.Errorf("%s: CUDA error %d", call, code)
}

// ErrOutOfMemory says that the card has no room for what was asked.
var ErrOutOfMemory = errors.New("out of memory")

// The structure must be laid out as in cuda.h.
const _ = uint(unsafe.Sizeof(allocationProp{}) - 32)
