package step_test

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
)

// The traces in testdata were measured with real PyTorch on a no-op CUDA
// driver: every allocation and free of four training steps. They were written
// by
//
//	oracle.py JOB --trace TRACE --trace-all
//	go run ./cmd/accuracy record JOB TRACE internal/estimator/step/testdata/traces/NAME
//
// and the engine must do the same, in the same order.

// cards are those the traces were measured for.
var cards = map[string]graph.Device{
	"A100-SXM4-80GB": {Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048},
	"H100-SXM5-80GB": {Capability: spec.Version{9, 0}, Multiprocessors: 132, ThreadsPerSM: 2048},
	"RTX-4090":       {Capability: spec.Version{8, 9}, Multiprocessors: 128, ThreadsPerSM: 1536},
	"V100-SXM2-32GB": {Capability: spec.Version{7, 0}, Multiprocessors: 80, ThreadsPerSM: 2048},
}

func TestTraces(t *testing.T) {
	jobs, err := filepath.Glob("testdata/traces/*.job.json")
	require.NoError(t, err)
	require.NotEmpty(t, jobs)
	for _, file := range jobs {
		name := strings.TrimSuffix(filepath.Base(file), ".job.json")
		t.Run(name, func(t *testing.T) {
			want := readEvents(t, strings.TrimSuffix(file, ".job.json")+".events.gz")
			got := runJob(t, file)
			for i := range min(len(want), len(got)) {
				require.Equal(t, want[i], got[i].text, "event %d, %s; before it: %v", i, got[i].from, want[max(0, i-5):i])
			}
			require.Len(t, got, len(want))
		})
	}
}

// readEvents reads a recorded trace.
func readEvents(t *testing.T, file string) []string {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var lines []string
	s := bufio.NewScanner(z)
	for s.Scan() {
		line := s.Text()
		if strings.HasPrefix(line, "=") {
			line = "=" // the engine has its own words for the parts
		}
		lines = append(lines, line)
	}
	require.NoError(t, s.Err())
	return lines
}

// line is an event as the recorded traces write it, and the op it is from.
type line struct{ text, from string }

// runJob lists the engine's events for a job, repetitions written out.
func runJob(t *testing.T, file string) []line {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var job spec.Job
	require.NoError(t, json.Unmarshal(data, &job))
	job, _, err = estimator.Resolve(job)
	require.NoError(t, err)
	card, ok := cards[job.Target.GPU]
	require.True(t, ok, "no card %s", job.Target.GPU)
	plan, err := step.Compile(job, card)
	require.NoError(t, err)
	w := &writer{size: map[int32]int64{}, plan: plan}
	w.parts(plan.Program)
	return w.out
}

// writer writes a program out.
type writer struct {
	plan  *step.Plan
	size  map[int32]int64
	freed []int64
	out   []line
}

func (w *writer) parts(ps []allocator.Part) {
	for _, p := range ps {
		for range max(1, p.Repeat) {
			w.events(p.Events)
			w.parts(p.Parts)
			moved := make([]int64, len(p.Carry))
			for i, c := range p.Carry {
				moved[i] = w.size[c.From]
			}
			for i, c := range p.Carry {
				w.size[c.To] = moved[i]
			}
		}
	}
}

func (w *writer) events(es []allocator.Event) {
	for _, e := range es {
		switch e.Kind {
		case allocator.Alloc:
			w.size[e.Block] = e.Bytes
			if e.Bytes > 0 {
				w.add(fmt.Sprintf("+%d", e.Bytes), w.plan.Machine.Describe(e.Block))
			}
		case allocator.Free:
			if n := w.size[e.Block]; n > 0 {
				w.freed = append(w.freed, n)
			}
		case allocator.Resize:
			if n := w.size[e.Block]; n > 0 {
				w.freed = append(w.freed, n)
			}
			if w.size[e.Block] = e.Bytes; e.Bytes > 0 {
				w.add(fmt.Sprintf("+%d", e.Bytes), w.plan.Machine.Describe(e.Block))
			}
		case allocator.Mark:
			if _, part := step.ReadMark(e.Site); part != step.LossPart {
				w.add("=", "")
			}
		}
	}
}

func (w *writer) add(text, from string) {
	slices.Sort(w.freed)
	for _, n := range w.freed {
		w.out = append(w.out, line{fmt.Sprintf("-%d", n), "before " + from})
	}
	w.freed = w.freed[:0]
	w.out = append(w.out, line{text, from})
}
