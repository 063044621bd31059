package snapshot

import (
	"bufio"
	"io"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/fault"
)

// Format is a way to write a run's events.
type Format string

// The formats, by their public names.
const (
	Events    Format = "events"     // JSON, an event a line
	MemoryViz Format = "memory_viz" // a pickle, as torch.cuda.memory._dump_snapshot writes it
	Chrome    Format = "chrome"     // JSON of the Trace Event Format
)

// kind is what a format is besides its name.
type kind struct {
	format    Format
	mediaType string
	suffix    string
	write     func(*bufio.Writer, *estimator.Recording) error
}

// kinds are the formats in the order in which they are offered.
func kinds() []kind {
	return []kind{
		{Events, "application/json", ".trace.json", writeEvents},
		{MemoryViz, "application/x-python-pickle", ".snapshot.pickle", writeMemoryViz},
		{Chrome, "application/vnd.chrome.trace+json", ".chrome.json", writeChrome},
	}
}

// Formats lists the formats, the default first.
func Formats() []Format {
	var all []Format
	for _, k := range kinds() {
		all = append(all, k.format)
	}
	return all
}

func (f Format) kind() (kind, bool) {
	for _, k := range kinds() {
		if k.format == f {
			return k, true
		}
	}
	return kind{}, false
}

// MediaType is what HTTP calls the format; empty for an unknown one.
func (f Format) MediaType() string {
	k, _ := f.kind()
	return k.mediaType
}

// File is the name of a file of the format about what stem names.
func (f Format) File(stem string) string {
	k, _ := f.kind()
	return stem + k.suffix
}

// Write writes a run's events. An unknown format is a fault.Fields at "format";
// any other error is the writer's.
func Write(w io.Writer, r *estimator.Recording, f Format) error {
	k, ok := f.kind()
	if !ok {
		var names []string
		for _, f := range Formats() {
			names = append(names, string(f))
		}
		return fault.Fields{{Path: "format", Got: string(f), Want: "one of " + strings.Join(names, ", "), Nearest: names[0]}}
	}
	out := bufio.NewWriterSize(w, 64<<10)
	if err := k.write(out, r); err != nil {
		return err
	}
	return out.Flush()
}
