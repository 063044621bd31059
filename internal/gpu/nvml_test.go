//go:build linux && cgo

package gpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

// l40s is a card that the mocks do not bring.
var l40s = gpus.Config{Name: "NVIDIA L40S", MemoryMB: 46068, CudaMajor: 8, CudaMinor: 9}

// mocked is a library over a mock server, whose every unset call panics.
func mocked(t *testing.T, s *server.Server, only ...string) *library {
	t.Helper()
	known := map[string]bool{"nvmlDeviceGetUUID": true}
	for _, symbol := range only {
		known[symbol] = true
	}
	s.LookupSymbolFunc = func(symbol string) error {
		if known[symbol] {
			return nil
		}
		return errAbsent
	}
	s.ExtensionsFunc = func() nvml.ExtendedInterface { return s }
	return &library{api: s, proc: t.TempDir()}
}

func TestNVMLOfMocks(t *testing.T) {
	tests := []struct {
		name   string
		server *server.Server
		cards  int
		first  string
		cuda   string
	}{
		{name: "eight A100", server: dgxa100.New(), cards: 8, first: "Mock NVIDIA A100-SXM4-40GB", cuda: "12.4"},
		{name: "eight H100", server: dgxh100.New(), cards: 8, first: "NVIDIA H100 80GB HBM3", cuda: "12.4"},
		{name: "a mixed box", server: dgxa100.NewWithGPUs(l40s, gpus.A30_PCIE_24GB), cards: 2, first: "NVIDIA L40S", cuda: "12.4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			all, err := mocked(t, tt.server).list()
			require.NoError(t, err)
			require.Len(t, all, tt.cards)
			require.Equal(t, tt.first, all[0].Name)
			require.Equal(t, tt.cuda, all[0].CUDA)
			ids := map[string]bool{}
			for i, d := range all {
				require.Equal(t, i, d.Index)
				require.Positive(t, d.Memory.Total)
				require.Nil(t, d.Utilisation, "this driver does not tell")
				ids[d.ID] = true
			}
			require.Len(t, ids, tt.cards, "every card has its own id")
		})
	}
}

func TestNVMLProcesses(t *testing.T) {
	s := dgxa100.NewWithGPUs(gpus.A100_SXM4_40GB)
	card := s.Devices[0].(*server.Device)
	card.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 11, UsedGpuMemory: 5 << 30}, {Pid: 12, UsedGpuMemory: notAvailable}}, nvml.SUCCESS
	}
	card.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 11, UsedGpuMemory: 5 << 30}, {Pid: 13, UsedGpuMemory: 1 << 20}}, nvml.SUCCESS
	}
	l := mocked(t, s, "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
	require.NoError(t, os.Mkdir(filepath.Join(l.proc, "11"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(l.proc, "11", "comm"), []byte("python\n"), 0o600))
	all, err := l.list()
	require.NoError(t, err)
	five, one := 5*units.GiB, units.MiB
	require.Equal(t, []planner.Process{
		{PID: 11, Name: "python", Used: &five, Alive: true},
		{PID: 12},
		{PID: 13, Used: &one},
	}, all[0].Processes)
}

func TestNVMLRefusals(t *testing.T) {
	tests := []struct {
		name string
		edit func(*server.Server)
		want string // "": the library counts as absent
	}{
		{name: "no library", edit: func(s *server.Server) {
			s.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
		}},
		{name: "another library of this name", edit: func(s *server.Server) {
			s.LookupSymbolFunc = func(string) error { return errAbsent }
		}},
		{name: "driver and library differ", edit: func(s *server.Server) {
			s.InitFunc = func() nvml.Return { return nvml.ERROR_LIB_RM_VERSION_MISMATCH }
		}, want: "NVML error 18"},
		{name: "a card fell off the bus", edit: func(s *server.Server) {
			s.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
		}, want: "card 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := dgxa100.New()
			l := mocked(t, s)
			tt.edit(s)
			_, err := l.list()
			if tt.want == "" {
				require.ErrorIs(t, err, errAbsent)
				return
			}
			require.Equal(t, fault.Unavailable, fault.KindOf(err))
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// stub builds testdata/nvml.c as a library and returns its path.
func stub(t *testing.T, flags ...string) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no C compiler for this test; install it with: make deps")
	}
	path := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := append(flags, "-shared", "-fPIC", "-o", path, "testdata/nvml.c")
	out, err := exec.Command(gcc, args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return path
}

// The library can be loaded once in a process: go-nvml's calls find their
// functions through the loader's global table.
func TestLoadsALibrary(t *testing.T) {
	if path := os.Getenv("GPU_TEST_LIBRARY"); path != "" {
		l := New(Config{NVML: path, CUDA: "none", Sys: t.TempDir(), Host: "h"})
		all, err := l.List(t.Context())
		require.NoError(t, err)
		checkStub(t, all, os.Getenv("GPU_TEST_OLD") != "")
		return
	}
	for _, tt := range []struct {
		name string
		old  string
	}{{name: "today's driver"}, {name: "an old driver", old: "-DOLD"}} {
		t.Run(tt.name, func(t *testing.T) {
			var flags []string
			if tt.old != "" {
				flags = []string{tt.old}
			}
			cmd := exec.Command(os.Args[0], "-test.run=^TestLoadsALibrary$", "-test.count=1")
			cmd.Env = append(os.Environ(), "GPU_TEST_LIBRARY="+stub(t, flags...), "GPU_TEST_OLD="+tt.old)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
		})
	}
}

func checkStub(t *testing.T, all []planner.Device, old bool) {
	t.Helper()
	require.Len(t, all, 2)
	d := all[1]
	require.Equal(t, "GPU-22222222-0000-0000-0000-000000000000", d.ID)
	require.Equal(t, "580.95.05", d.Driver)
	require.Equal(t, "13.0", d.CUDA)
	require.Equal(t, "h", d.Host)
	tables, err := catalog.Open()
	require.NoError(t, err)
	known, err := tables.GPU(d.Name)
	require.NoError(t, err, "the catalogue knows the driver's name of the card")
	require.Equal(t, "A100-SXM4-80GB", known.Key)
	if old {
		require.Equal(t, 3*units.GiB, d.Memory.Used)
		require.Empty(t, d.ECC)
		require.Nil(t, d.Utilisation)
		require.Empty(t, d.Processes)
		return
	}
	require.Equal(t, units.GiB/2, d.Memory.Reserved)
	require.Equal(t, d.Memory.Total, d.Memory.Used+d.Memory.Free+d.Memory.Reserved)
	require.Equal(t, "on", d.ECC)
	require.Equal(t, "off", d.MIG.Mode)
	require.Equal(t, 7, *d.Utilisation)
	require.Len(t, d.Processes, 2)
	require.True(t, d.Processes[0].Alive)
	require.False(t, d.Processes[1].Alive)
}
