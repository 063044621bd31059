package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"memplan/internal/estimator"
	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/step"
	"memplan/internal/wire"
)

// happening is one allocation, with the sizes freed since the one before, or a
// mark.
type happening struct {
	mark  string
	bytes int64
	freed []int64
	note  string
}

// diff prints the first places where the engine's events and the trace part.
func diff(w io.Writer, jobFile, traceFile string, stage int) error {
	ours, err := engineEvents(jobFile, stage)
	if err != nil {
		return err
	}
	real, err := traceEvents(traceFile)
	if err != nil {
		return err
	}
	ours, real = unmarked(ours), unmarked(real)
	const shown = 3
	bad := 0
	for i := 0; i < len(ours) && i < len(real) && bad < shown; i++ {
		if same(ours[i], real[i]) {
			continue
		}
		bad++
		fmt.Fprintf(w, "event %d differs\n", i)
		for j := max(0, i-6); j < i+8; j++ {
			a, b := at(real, j), at(ours, j)
			sign := " "
			if !same(a, b) {
				sign = "!"
			}
			fmt.Fprintf(w, "%s %5d  real %-70s | ours %s\n", sign, j, a, b)
		}
		if bad == 1 && len(ours) != len(real) {
			break // one event too many shifts everything after it
		}
	}
	fmt.Fprintf(w, "%d events here, %d in the trace, %d differ\n", len(ours), len(real), bad)
	if bad > 0 || len(ours) < len(real) { // a trace may end before our last step
		return fmt.Errorf("the event streams differ")
	}
	return nil
}

func same(a, b happening) bool {
	return (a.mark != "") == (b.mark != "") && a.bytes == b.bytes && slices.Equal(a.freed, b.freed)
}

// unmarked merges marks into what follows them: loops over several ranks put
// them elsewhere.
func unmarked(hs []happening) []happening {
	var out []happening
	var freed []int64
	for _, h := range hs {
		freed = append(freed, h.freed...)
		if h.mark == "" {
			slices.Sort(freed)
			h.freed, freed = freed, nil
			out = append(out, h)
		}
	}
	return out
}

func at(hs []happening, i int) happening {
	if i < len(hs) {
		return hs[i]
	}
	return happening{mark: "end"}
}

// String shows a happening on one line.
func (h happening) String() string {
	if h.mark != "" {
		return fmt.Sprintf("%v -- %s", h.freed, h.mark)
	}
	return fmt.Sprintf("%v +%d %s", h.freed, h.bytes, h.note)
}

// engineEvents lists what the engine does for a job, repetitions written out.
func engineEvents(file string, stage int) ([]happening, error) {
	plan, err := compile(file, stage)
	if err != nil {
		return nil, err
	}
	l := &lister{size: map[int32]int64{}, plan: plan}
	l.parts(plan.Program)
	return l.out, nil
}

func compile(file string, stage int) (*step.Plan, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	job, err := wire.Decode(data)
	if err != nil {
		return nil, err
	}
	job, _, err = estimator.Resolve(job)
	if err != nil {
		return nil, err
	}
	return step.CompileStage(nil, job, cardOf(job.Target.GPU), stage, nil)
}

type lister struct {
	plan  *step.Plan
	size  map[int32]int64
	freed []int64
	out   []happening
}

func (l *lister) parts(ps []allocator.Part) {
	for _, p := range ps {
		for range max(1, p.Repeat) {
			l.events(p.Events)
			l.parts(p.Parts)
			l.carry(p.Carry)
		}
	}
}

func (l *lister) carry(cs []allocator.Carry) {
	sizes := make([]int64, len(cs))
	for i, c := range cs {
		sizes[i] = l.size[c.From]
		delete(l.size, c.From)
	}
	for i, c := range cs {
		l.size[c.To] = sizes[i]
	}
}

func (l *lister) events(es []allocator.Event) {
	for _, e := range es {
		switch e.Kind {
		case allocator.Alloc:
			l.size[e.Block] = e.Bytes
			if e.Bytes > 0 {
				l.add(happening{bytes: e.Bytes, note: l.plan.Machine.Describe(e.Block)})
			}
		case allocator.Free:
			if n := l.size[e.Block]; n > 0 {
				l.freed = append(l.freed, n)
			}
		case allocator.Resize:
			if n := l.size[e.Block]; n > 0 {
				l.freed = append(l.freed, n)
			}
			if l.size[e.Block] = e.Bytes; e.Bytes > 0 {
				l.add(happening{bytes: e.Bytes, note: l.plan.Machine.Describe(e.Block)})
			}
		case allocator.Mark:
			ph, pt := step.ReadMark(e.Site)
			if pt != step.LossPart {
				l.add(happening{mark: ph.String() + " " + pt.String()})
			}
		}
	}
}

func (l *lister) add(h happening) {
	slices.Sort(l.freed)
	h.freed = l.freed
	l.freed = nil
	l.out = append(l.out, h)
}

// traceEvents reads the oracle's trace.
func traceEvents(file string) ([]happening, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var trace struct {
		Events []struct {
			Event string `json:"event"`
			Bytes int64  `json:"bytes"`
			Part  string `json:"part"`
			At    string `json:"at"`
			Step  *int   `json:"step"`
		} `json:"events"`
	}
	if err := json.Unmarshal(data, &trace); err != nil {
		return nil, err
	}
	l := &lister{}
	for _, e := range trace.Events {
		switch e.Event {
		case "alloc":
			l.add(happening{bytes: e.Bytes, note: e.At})
		case "free_requested": // completed later where another stream uses the block
			l.freed = append(l.freed, e.Bytes)
		case "mark":
			l.add(happening{mark: e.Part})
		}
	}
	return l.out, nil
}
