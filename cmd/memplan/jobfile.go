package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"memplan/internal/fault"
	"memplan/internal/jobfile"
	"memplan/internal/wire"
)

// importCommand turns another tool's file into a job.
type importCommand struct {
	File  string `arg:"" help:"The other tool's file; - reads standard input."`
	From  string `placeholder:"FORMAT" help:"Whose file it is; without it, the tool whose keys it has most of."`
	Model string `placeholder:"ID" help:"The model, where the file names none."`
}

// Help lists the formats.
func (c *importCommand) Help() string {
	return "The job is printed in YAML, for memplan estimate - and the like. Keys that mean nothing for memory are listed on standard error. Formats:\n" + formats()
}

// formats lists the formats with their usual files.
func formats() string {
	var out strings.Builder
	for _, f := range jobfile.Formats() {
		fmt.Fprintf(&out, "\n  %-13s %s", f.Name, f)
	}
	return out.String()
}

// Run prints the job.
func (c *importCommand) Run(s *session) error {
	text, err := jobInput{File: c.File}.text(s.stdin)
	if err != nil {
		return err
	}
	reading, err := readAs(c.From, text)
	if err != nil {
		return err
	}
	if c.Model != "" {
		reading.Job.Model.ID = c.Model
	}
	if reading.Job.Model.ID == "" {
		fmt.Fprintf(s.stderr, "A %s file names no model; give it with --model.\n", reading.Format)
	}
	reading.tell(s.stderr)
	if s.json {
		return s.printJSON(reading.Job)
	}
	job, err := wire.EncodeYAML(reading.Job)
	if err != nil {
		return err
	}
	_, err = s.stdout.Write(job)
	return err
}

// foreign is a job read from another tool's file.
type foreign struct{ jobfile.Reading }

// readAs reads a file of a format, or of the one it looks most like.
func readAs(format string, text []byte) (foreign, error) {
	if format == "" || format == "auto" {
		r, err := jobfile.Detect(text)
		return foreign{r}, err
	}
	f, err := jobfile.Named(format)
	if err != nil {
		return foreign{}, err
	}
	r, err := f.Read(text)
	return foreign{r}, err
}

// tell says what was passed over.
func (f foreign) tell(w io.Writer) {
	if len(f.Unknown) > 0 {
		fmt.Fprintf(w, "Read as %s. Of no consequence for memory, or not understood: %s.\n", f.Format, strings.Join(f.Unknown, ", "))
	}
}

// exportCommand writes a job as another tool's file.
type exportCommand struct {
	targeted
	To string `required:"" placeholder:"FORMAT" help:"Whose file to write."`
}

// Help lists the formats.
func (c *exportCommand) Help() string {
	return "What the tool has no key for is listed on standard error. Formats:\n" + formats()
}

// Run prints the tool's file for the job with its defaults filled in.
func (c *exportCommand) Run(s *session) error {
	format, err := jobfile.Named(c.To)
	if err != nil {
		return err
	}
	job, err := c.read(s)
	if err != nil {
		return err
	}
	est, err := s.back.Estimate(s.ctx, job)
	if err != nil {
		return err
	}
	if !format.Suits(est.Job) {
		return fault.New(fault.Invalid, "%s has no words for this job: its trainer is %s, its sharding %s", format.Title, cmp.Or(est.Job.Runtime.Trainer, "not named"), cmp.Or(est.Job.Parallelism.Sharding, "none"))
	}
	written, err := format.Write(jobfile.Subject{Job: est.Job, Told: jobfile.Settings(job), Need: est.Peak.Interval.High, Host: est.HostMemory})
	if err != nil {
		return err
	}
	told := jobfile.Settings(job)
	lost := slices.DeleteFunc(slices.Clone(written.Unsaid), func(path string) bool { return !slices.Contains(told, path) })
	if len(lost) > 0 {
		fmt.Fprintf(s.stderr, "%s does not carry over what the job says of %s.\n", format.Title, strings.Join(lost, ", "))
	}
	if s.json {
		return s.printJSON(map[string]any{"tool": format.Name, "text": written.Text, "unsaid": written.Unsaid})
	}
	_, err = io.WriteString(s.stdout, written.Text)
	return err
}
