package jobfile

import (
	"fmt"
	"slices"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/units"
)

// Kind says what a format is for.
type Kind string

// The kinds of formats.
const (
	Training    Kind = "training"    // how a tool trains
	Environment Kind = "environment" // variables of the process
	Scheduler   Kind = "scheduler"   // where the job runs
)

// Format is one tool's way of writing a job down.
type Format struct {
	Name   string // axolotl; stable, for URLs and flags
	Title  string // Axolotl
	File   string // the usual file name
	Kind   Kind
	Source string // repository and version whose keys these are

	syntax  syntax
	rules   []rule
	implies func(*spec.Job)         // what a file of this format says by being one
	suits   func(*spec.Job) bool    // nil: every job
	fixed   func(*Subject) document // lines beside the job's own settings; nil: none
}

// Subject is a job to be written, and what the estimate says it needs.
type Subject struct {
	Job  spec.Job
	Told []string    // paths of what matters of it: where the file cannot say one, a comment does
	Need units.Bytes // memory of one GPU; 0 when unknown
	Host units.Bytes // memory of the host; 0 when unknown
}

// Written is a job in a tool's own words.
type Written struct {
	Text   string
	Unsaid []string // paths of settings the text does not carry over, sorted
}

// Reading is a job as far as a file tells it.
type Reading struct {
	Format  string
	Job     spec.Job
	Unknown []string // keys that mean nothing to an estimate, in their order
}

// Formats lists all formats, in the order they are offered.
func Formats() []Format {
	return []Format{
		trainingArguments(), sftConfig(), accelerateFSDP(), deepspeedJSON(), axolotl(), llamaFactory(),
		torchtune(), lightning(), megatron(), torchtitan(), allocatorSettings(),
		slurm(), kubernetes(), skypilot(),
	}
}

// Named returns the format of a name. Its error names the nearest.
func Named(name string) (Format, error) {
	var names []string
	for _, f := range Formats() {
		if f.Name == name {
			return f, nil
		}
		names = append(names, f.Name)
	}
	return Format{}, fault.Fields{{Path: "format", Got: name, Want: "one of " + strings.Join(names, ", "), Nearest: nearest(name, names)}}
}

// Suits reports whether writing the job in this format makes sense: a
// DeepSpeed configuration does not for a job without ZeRO.
func (f Format) Suits(job spec.Job) bool { return f.suits == nil || f.suits(&job) }

// Paths lists the settings of a job that the format has keys for, sorted.
func (f Format) Paths() []string {
	var all []string
	for _, r := range f.rules {
		all = append(all, r.paths...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Write writes a job in the format. Settings it has no words for are Unsaid.
func (f Format) Write(s Subject) (Written, error) {
	var d document
	if f.fixed != nil {
		d = f.fixed(&s)
	}
	for _, r := range f.rules {
		if r.write != nil {
			r.write(&s, &d)
		}
	}
	text, err := f.syntax.encode(d)
	if err != nil {
		return Written{}, fault.Wrap(fault.Internal, "jobfile: write "+f.Name, err)
	}
	back, err := f.Read([]byte(text))
	if err != nil {
		return Written{}, fault.Wrap(fault.Internal, "jobfile: read back "+f.Name, err)
	}
	w := Written{Text: text, Unsaid: differing(s.Job, back.Job)}
	if f.Kind == Training && f.syntax.comments {
		w.Text = elsewhere(s, w.Unsaid) + w.Text
	}
	return w, nil
}

// elsewhere is a comment on what has to be set in another place.
func elsewhere(s Subject, unsaid []string) string {
	var out strings.Builder
	settings := settingsOf(s.Job)
	for _, path := range unsaid {
		if !slices.Contains(s.Told, path) || !strings.HasPrefix(path, "training.") && !strings.HasPrefix(path, "parallelism.") {
			continue
		}
		if out.Len() == 0 {
			out.WriteString("# To be set elsewhere, for want of a key here:\n")
		}
		fmt.Fprintf(&out, "#   %s: %v\n", path, settings[path])
	}
	return out.String()
}

// Read reads a file of the format. Keys without a meaning for memory are
// Unknown; values that cannot be are fault.Fields with the tool's own keys as
// paths. The job is not complete: what the file leaves out is left out.
func (f Format) Read(data []byte) (Reading, error) {
	d, err := f.syntax.decode(data)
	if err != nil {
		return Reading{}, fault.Fields{{Path: f.File, Got: err.Error(), Want: f.syntax.name}}
	}
	in := &source{document: d, used: map[string]bool{}}
	job := spec.Job{Version: 1}
	if f.implies != nil {
		f.implies(&job)
	}
	for _, r := range f.rules {
		r.read(in, &job)
	}
	if err := in.wrong.Err(); err != nil {
		return Reading{}, err
	}
	return Reading{Format: f.Name, Job: job, Unknown: in.unknown()}, nil
}

// Detect reads a file without being told its format: the one that knows most
// of its keys. It fails where none knows any.
func Detect(data []byte) (Reading, error) {
	var best Reading
	known, whole := 0, false
	var failed error
	for _, f := range Formats() {
		d, err := f.syntax.decode(data)
		if err != nil {
			continue
		}
		in := &source{document: d, used: map[string]bool{}}
		for _, r := range f.rules {
			r.read(in, new(spec.Job))
		}
		n := len(in.used)
		if n < known || n == 0 || n == known && (whole || len(in.unknown()) > 0) {
			continue
		}
		got, err := f.Read(data)
		if err != nil {
			failed = err
		}
		best, known, whole, failed = got, n, len(in.unknown()) == 0, err
	}
	switch {
	case failed != nil:
		return Reading{}, failed
	case known == 0:
		return Reading{}, fault.New(fault.Invalid, "the file has no key of a format that is known: %s", titles())
	}
	return best, nil
}

func titles() string {
	var all []string
	for _, f := range Formats() {
		all = append(all, f.Title)
	}
	return strings.Join(all, ", ")
}

// nearest is the name that begins most like the one given.
func nearest(name string, names []string) string {
	best, length := "", 0
	for _, n := range names {
		k := 0
		for k < min(len(n), len(name)) && n[k] == name[k] {
			k++
		}
		if k > length {
			best, length = n, k
		}
	}
	return best
}

// String names the format for people.
func (f Format) String() string { return fmt.Sprintf("%s (%s)", f.Title, f.File) }
