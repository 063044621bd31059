package microbench

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

// card is an idle card.
func card() planner.Device {
	return planner.Device{
		ID: "GPU-1", GPU: "A100-SXM4-80GB", Name: "NVIDIA A100-SXM4-80GB", Host: "h", Driver: "580.95",
		Memory: planner.DeviceMemory{Total: 80 * units.GiB, Used: units.GiB, Free: 79 * units.GiB},
	}
}

// seen is a card as its driver sees it, whoever asks.
type seen planner.Device

func (s seen) List(context.Context) ([]planner.Device, error) {
	return []planner.Device{planner.Device(s)}, nil
}

// python is a program that stands for Python: a shell script.
func python(t *testing.T, text string) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("probes run on Linux: run this test there")
	}
	path := filepath.Join(t.TempDir(), "python")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}

// once runs a probe whose process is a script.
func once(t *testing.T, probe, script string, limit time.Duration) planner.ProbeResult {
	t.Helper()
	r, err := New(Config{Python: python(t, script)}).Run(t.Context(), card(), probe, planner.ProbeOptions{Limit: limit})
	require.NoError(t, err)
	return r
}

func TestWhatAProcessTells(t *testing.T) {
	tests := []struct {
		name, script string
		state        string
		why          string
		figures      int
	}{
		{name: "all", script: `read plan; echo '{"about":{"versions":{"torch":"2.15.0"}}}'; echo '{"figure":{"name":"x","value":1,"unit":"bytes"}}'; echo '{"end":true}'`, state: planner.ProbeDone, figures: 1},
		{name: "a note that newer scripts print", script: `read plan; echo '{"note":"x"}'; echo '{"end":true}'`, state: planner.ProbeDone},
		{name: "no PyTorch", script: `read plan; echo '{"skip":"PyTorch is not installed"}'`, state: planner.ProbeSkipped, why: "PyTorch is not installed"},
		{name: "out of memory", script: `read plan; echo '{"figure":{"name":"x","value":1,"unit":"bytes"}}'; echo '{"oom":"tried to allocate 2 GiB"}'`, state: planner.ProbeOOM, why: "2 GiB", figures: 1},
		{name: "an exception", script: `read plan; echo '{"error":"ValueError: x"}'`, state: planner.ProbeFailed, why: "ValueError: x"},
		{name: "a crash", script: `read plan; echo 'Traceback' >&2; echo 'RuntimeError: bad' >&2; exit 1`, state: planner.ProbeFailed, why: "RuntimeError: bad"},
		{name: "killed", script: `read plan; kill -9 $$`, state: planner.ProbeFailed, why: "killed"},
		{name: "it stops early", script: `read plan; echo '{"figure":{"name":"x","value":1,"unit":"bytes"}}'`, state: planner.ProbeFailed, why: "before it did", figures: 1},
		{name: "chatter", script: `read plan; echo hello`, state: planner.ProbeFailed, why: "no line of a probe"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := once(t, "workspace", tt.script, time.Minute)
			require.Equal(t, tt.state, r.State, r.Error)
			require.Contains(t, r.Error, tt.why)
			require.Len(t, r.Figures, tt.figures)
		})
	}
}

func TestAProbeThatHangsIsEndedWithItsChildren(t *testing.T) {
	child := filepath.Join(t.TempDir(), "child")
	r := once(t, "workspace", `read plan; sleep 1000 & echo $! > `+child+`; wait`, 300*time.Millisecond)
	require.Equal(t, planner.ProbeTimedOut, r.State)
	pid, err := os.ReadFile(child)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // the kernel takes its time to carry a signal out
		state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ") // gone, or not yet collected by init
	}, time.Minute, time.Millisecond)
}

func TestATrainingProbeGivesARun(t *testing.T) {
	r := once(t, "train_llama", `read plan
echo "$plan" >&2
echo '{"about":{"versions":{"torch":"2.15.0","transformers":"5.24.0"},"cuda":"13.2"}}'
echo '{"ask":"process"}'; read held; [ "$held" = '{"process_bytes":null}' ] || exit 3
echo '{"measured":{"metric":"allocated","phase":"steady_step","bytes":5899851776,"relation":"equals","method":"torch.cuda.memory_stats"}}'
echo '{"events":[512,-512]}'
echo '{"end":true}'`, time.Minute)
	require.Equal(t, planner.ProbeDone, r.State, r.Error)
	require.Equal(t, []int64{512, -512}, r.Events)
	require.Len(t, r.Runs, 1)
	run, err := wire.DecodeRun(r.Runs[0])
	require.NoError(t, err)
	require.Equal(t, "2.15.0", run.Job.Runtime.FrameworkVersion)
	require.Equal(t, "5.24.0", run.Job.Runtime.LibraryVersions["transformers"])
	require.Equal(t, "A100-SXM4-80GB", run.Job.Target.GPU)
	require.Equal(t, units.Bytes(5899851776), run.Measured[0].Bytes)
	require.Equal(t, wire.Environment{GPU: "NVIDIA A100-SXM4-80GB", Driver: "580.95", CUDA: "13.2", Host: "h"}, run.Environment)
}

// Every job must be one that is predicted, or what it measures is of no use.
func TestJobsArePredicted(t *testing.T) {
	tables, err := catalog.Open()
	require.NoError(t, err)
	p := planner.New(planner.Config{Catalog: tables})
	for _, j := range jobs {
		t.Run(j.name, func(t *testing.T) {
			text, err := j.run(about{Versions: map[string]string{"torch": "2.15.0", "transformers": "5.24.0"}}, card(), []measured{{Metric: "allocated", Phase: "load", Bytes: 1, Relation: "equals"}})
			require.NoError(t, err)
			run, err := wire.DecodeRun(text)
			require.NoError(t, err)
			est, err := p.Estimate(t.Context(), run.Job)
			require.NoError(t, err)
			require.Less(t, est.Peak.Reserved, 11*units.GiB, "it is to fit on small cards")
		})
	}
}

func TestACardInUseIsLeftAlone(t *testing.T) {
	some, none, busy := units.GiB, units.Bytes(0), 60
	tests := []struct {
		name string
		edit func(*planner.Device)
		want string
	}{
		{name: "idle", edit: func(*planner.Device) {}},
		{name: "a process without memory", edit: func(d *planner.Device) { d.Processes = []planner.Process{{PID: 7, Used: &none}} }},
		{name: "a process", edit: func(d *planner.Device) { d.Processes = []planner.Process{{PID: 7, Name: "python", Used: &some}} }, want: "python 7"},
		{name: "a process whose memory is not told", edit: func(d *planner.Device) { d.Processes = []planner.Process{{PID: 7}} }, want: "7"},
		{name: "busy", edit: func(d *planner.Device) { d.Utilisation = &busy }, want: "60 %"},
		{name: "full", edit: func(d *planner.Device) { d.Memory.Free = 9 * units.GiB }, want: "are free"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := card()
			tt.edit(&d)
			b := New(Config{Python: python(t, `read plan; echo '{"end":true}'`), Devices: seen(d)})
			_, err := b.Run(t.Context(), card(), "workspace", planner.ProbeOptions{Limit: time.Minute})
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, fault.Conflict, fault.KindOf(err))
			require.ErrorContains(t, err, tt.want)
			r, err := b.Run(t.Context(), card(), "workspace", planner.ProbeOptions{Limit: time.Minute, Force: true})
			require.NoError(t, err)
			require.Equal(t, planner.ProbeDone, r.State)
		})
	}
}

func TestATenthStaysFree(t *testing.T) {
	d := card()
	require.Equal(t, 71*units.GiB, limitOf(d))
	plans := filepath.Join(t.TempDir(), "plan")
	once(t, "workspace", `read plan; echo "$plan" > `+plans+`; echo '{"end":true}'`, time.Minute)
	text, err := os.ReadFile(plans)
	require.NoError(t, err)
	var p plan
	require.NoError(t, json.Unmarshal(text, &p))
	require.Equal(t, plan{Probe: "workspace", Device: "cuda", Limit: 71 * units.GiB, Used: units.GiB}, p)
}

func TestNoDriver(t *testing.T) {
	r, err := New(Config{CUDA: "none.so"}).Run(t.Context(), card(), "driver", planner.ProbeOptions{Limit: time.Minute})
	require.NoError(t, err)
	require.Equal(t, planner.ProbeSkipped, r.State)
	_, err = New(Config{}).Run(t.Context(), card(), "speed", planner.ProbeOptions{Limit: time.Minute})
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}
