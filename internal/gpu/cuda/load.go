//go:build linux

package cuda

import (
	"fmt"

	"github.com/ebitengine/purego"
)

// load binds the functions of the library at a path.
func load(path string) (*Driver, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrAbsent, err)
	}
	d := &Driver{}
	c := &d.calls
	for _, f := range []struct {
		name string
		into any
	}{
		{"cuInit", &c.init},
		{"cuDriverGetVersion", &c.version},
		{"cuDeviceGetCount", &c.count},
		{"cuDeviceGet", &c.get},
		{"cuDeviceGetName", &c.name},
		{"cuDeviceGetUuid", &c.uuid},
		{"cuDeviceTotalMem_v2", &c.total},
		{"cuDeviceGetAttribute", &c.attribute},
		{"cuCtxCreate_v2", &c.createContext},
		{"cuCtxDestroy_v2", &c.dropContext},
		{"cuMemGetInfo_v2", &c.memory},
		{"cuMemGetAllocationGranularity", &c.granularity},
	} {
		at, err := purego.Dlsym(handle, f.name)
		if err != nil {
			return nil, fmt.Errorf("%w: it has no %s", ErrAbsent, f.name)
		}
		purego.RegisterFunc(f.into, at)
	}
	return d, nil
}
