package main

import (
	"compress/gzip"
	"fmt"
	"os"
	"slices"
	"strings"
)

// record keeps a trace as a test of the engine: NAME.job.json, and
// NAME.events.gz with one event a line: +bytes is an allocation, -bytes a free
// (ordered by size between two allocations, where their order does not
// matter), =part the end of a part of the run.
func record(jobFile, traceFile, name string) error {
	real, err := traceEvents(traceFile)
	if err != nil {
		return err
	}
	job, err := os.ReadFile(jobFile)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".job.json", job, 0o644); err != nil {
		return err
	}
	var text strings.Builder
	for _, h := range commonMarks(real) {
		for _, n := range h.freed {
			fmt.Fprintf(&text, "-%d\n", n)
		}
		if h.mark != "" {
			fmt.Fprintf(&text, "=%s\n", h.mark)
		} else {
			fmt.Fprintf(&text, "+%d\n", h.bytes)
		}
	}
	return writeGzip(name+".events.gz", text.String())
}

// commonMarks leaves out the marks that only loops over several ranks set:
// there the engine's load ends with "wrap", and its optimizer part with "end", or
// in DeepSpeed's loop, which has no such mark, with the "optimizer" that did
// something.
func commonMarks(hs []happening) []happening {
	if !slices.ContainsFunc(hs, func(h happening) bool { return h.mark == "wrap" }) {
		return hs
	}
	ends := slices.ContainsFunc(hs, func(h happening) bool { return h.mark == "end" })
	var out []happening
	var freed []int64
	for i, h := range hs {
		freed = append(freed, h.freed...)
		switch h.mark {
		case "load", "batch", "clip":
			continue
		case "optimizer":
			if ends || hs[i-1].mark == "backward" {
				continue
			}
		}
		slices.Sort(freed)
		h.freed, freed = freed, nil
		out = append(out, h)
	}
	return out
}

func writeGzip(file, text string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write([]byte(text)); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return f.Close()
}
