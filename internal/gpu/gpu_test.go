package gpu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/fault"
	"memplan/internal/units"
)

// sys makes a tree of the kernel's files.
func sys(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	}
	return root
}

// absent is a host without any driver.
func absent(sys string) *Lister {
	return New(Config{NVML: "none.so", CUDA: "none.so", Sys: sys, Host: "here"})
}

func TestWithoutADriver(t *testing.T) {
	_, err := absent(t.TempDir()).List(t.Context())
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	require.ErrorContains(t, err, "No NVIDIA driver")
}

func TestAMD(t *testing.T) {
	root := sys(t, map[string]string{
		"class/drm/card0/device/vendor":              "0x8086", // an integrated display
		"class/drm/card1/device/vendor":              "0x1002",
		"class/drm/card1/device/mem_info_vram_total": "68702699520",
		"class/drm/card1/device/mem_info_vram_used":  "1073741824",
		"class/drm/card1/device/unique_id":           "abc123",
		"class/drm/card1/device/product_name":        "AMD Instinct MI210",
		"class/drm/card1/device/gpu_busy_percent":    "42",
		"class/drm/card2/device/vendor":              "0x1002",
		"class/drm/card2/device/device":              "0x740f",
		"class/drm/card2/device/mem_info_vram_total": "17163091968",
		"class/drm/card3/device/vendor":              "0x1002", // no memory is told
		"class/drm/card1-DP-1/device/vendor":         "0x1002", // a connector
		"class/drm/renderD128/device/vendor":         "0x1002",
		"class/drm/card9/device/mem_info_vram_total": "nonsense",
		"class/drm/version":                          "drm 1.1.0",
	})
	all, err := absent(root).List(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "AMD-abc123", all[0].ID)
	require.Equal(t, "AMD Instinct MI210", all[0].Name)
	require.Equal(t, units.GiB, all[0].Memory.Used)
	require.Equal(t, 42, *all[0].Utilisation)
	require.NotEmpty(t, all[0].Unsupported)
	require.Equal(t, "here", all[0].Host)
	require.Equal(t, "AMD-card2", all[1].ID)
	require.Equal(t, "AMD 0x740f", all[1].Name)
}
