package allocator

import (
	"testing"

	"memplan/internal/units"
)

// BenchmarkRun replays four steps of a real job, from an empty card.
func BenchmarkRun(b *testing.B) {
	for _, x := range []struct {
		name, file string
		config     Config
	}{
		{"default", "llama_hf", Config{}},
		{"expandable", "llama_exp", Config{ExpandableSegments: true, DeviceTotal: 80 * units.GiB}},
		{"pressed", "gpt2_retry", Config{Capacity: 860067201 - 500*units.MiB}},
	} {
		b.Run(x.name, func(b *testing.B) {
			trace := readTrace(b, "testdata/"+x.file+".json.gz")
			events := len(trace.Program[0].Events)
			a := New(x.config)
			b.ReportAllocs()
			for b.Loop() {
				a.Reset(x.config)
				if err := a.Run(trace.Program, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(events), "ns/event")
		})
	}
}

// BenchmarkRunCold includes what a first run pays for memory.
func BenchmarkRunCold(b *testing.B) {
	trace := readTrace(b, "testdata/llama_hf.json.gz")
	b.ReportAllocs()
	for b.Loop() {
		if err := New(Config{}).Run(trace.Program, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRequired(b *testing.B) {
	trace := readTrace(b, "testdata/llama_hf.json.gz")
	a := New(Config{})
	if err := a.Run(trace.Program, nil); err != nil {
		b.Fatal(err)
	}
	unlimitedRun := a.Stats()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.RequiredAfter(Config{}, trace.Program, unlimitedRun, 0.005); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(trace.Program[0].Events)), "events")
}
