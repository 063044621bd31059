package gpu

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"memplan/internal/planner"
	"memplan/internal/units"
)

// amdVendor is AMD's PCI vendor id.
const amdVendor = "0x1002"

// amd lists AMD cards by the files of the amdgpu kernel driver
// (Documentation/gpu/amdgpu/driver-misc.rst of Linux): their totals, which is
// all that is read of them.
func (l *Lister) amd() []planner.Device {
	folders, _ := filepath.Glob(filepath.Join(l.config.Sys, "class/drm/card*/device")) // fails only on a bad pattern
	var all []planner.Device
	for _, dir := range folders {
		read := func(name string) string {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return ""
			}
			return strings.TrimSpace(string(b))
		}
		total, err := strconv.ParseInt(read("mem_info_vram_total"), 10, 64)
		if read("vendor") != amdVendor || err != nil {
			continue
		}
		used, _ := strconv.ParseInt(read("mem_info_vram_used"), 10, 64) // absent: nothing is known to be used
		card := filepath.Base(filepath.Dir(dir))
		d := planner.Device{
			ID: "AMD-" + cmp.Or(read("unique_id"), card), Index: len(all),
			Name:        cmp.Or(read("product_name"), "AMD "+read("device")),
			Memory:      planner.DeviceMemory{Total: units.Bytes(total), Used: units.Bytes(used), Free: units.Bytes(total - used)},
			Unsupported: "memplan reads the totals of AMD cards and runs no probes on them",
		}
		if busy, err := strconv.Atoi(read("gpu_busy_percent")); err == nil {
			d.Utilisation = &busy
		}
		all = append(all, d)
	}
	return all
}
