package microbench

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"memplan/internal/planner"
	"memplan/internal/units"
)

// script is the program that every probe of the second tier runs.
//
//go:embed probe.py
var script []byte

// plan is the script's standard input: its first line.
type plan struct {
	Probe  string      `json:"probe"`
	Device string      `json:"device"`
	Limit  units.Bytes `json:"limit_bytes,omitempty"`
	Used   units.Bytes `json:"used_before_bytes"`
	Job    object      `json:"job,omitempty"`
	Steps  int         `json:"steps,omitempty"`
}

// line is one line of its standard output: one of these is set.
type line struct {
	About    *about          `json:"about"`
	Figure   *planner.Figure `json:"figure"`
	Measured *measured       `json:"measured"`
	Events   []int64         `json:"events"`
	Ask      string          `json:"ask"`
	Skip     string          `json:"skip"`
	OOM      string          `json:"oom"`
	Error    string          `json:"error"`
	End      bool            `json:"end"`
}

// spawn runs a probe in a process of its own and fills its result.
func (b *Bencher) spawn(ctx context.Context, d planner.Device, p probe, r *planner.ProbeResult) {
	input := plan{Probe: p.script, Device: "cuda", Limit: max(limitOf(d), units.MiB), Used: d.Memory.Used}
	if p.job != nil {
		input.Job, input.Steps = object{"model": p.job.model, "training": p.job.training}, Steps
	}
	out := &outcome{result: r}
	err := b.process(ctx, append(p.env, visible(d)...), input, out, func(pid int) *units.Bytes { return b.heldBy(ctx, d, pid) })
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		r.State, r.Error = planner.ProbeTimedOut, "it took longer than it may"
	case err != nil:
		r.State, r.Error = planner.ProbeFailed, err.Error()
	case !out.ended && r.State == planner.ProbeDone:
		r.State, r.Error = planner.ProbeFailed, "its process ended before it did"
	}
	if p.job != nil && len(out.sizes) > 0 && out.about != nil {
		text, err := p.job.run(*out.about, d, out.sizes)
		if err != nil {
			r.State, r.Error = planner.ProbeFailed, err.Error()
			return
		}
		r.Runs = append(r.Runs, text)
	}
}

// visible lets a process see one card only.
func visible(d planner.Device) []string {
	if strings.HasPrefix(d.ID, "MIG-") {
		return []string{"CUDA_VISIBLE_DEVICES=" + d.ID}
	}
	return []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + strconv.Itoa(d.Index)}
}

// heldBy is what the driver says a process holds, or nil where it does not: in a
// container it may know processes by other ids.
func (b *Bencher) heldBy(ctx context.Context, d planner.Device, pid int) *units.Bytes {
	now, err := b.now(ctx, d)
	if err != nil {
		return nil
	}
	for _, p := range now.Processes {
		if p.PID == pid {
			return p.Used
		}
	}
	return nil
}

// outcome gathers the lines of a process.
type outcome struct {
	result *planner.ProbeResult
	about  *about
	sizes  []measured
	ended  bool
}

// take notes one line.
func (o *outcome) take(l line) {
	r := o.result
	switch {
	case l.About != nil:
		o.about = l.About
	case l.Figure != nil:
		r.Figures = append(r.Figures, *l.Figure)
	case l.Measured != nil:
		o.sizes = append(o.sizes, *l.Measured)
	case l.Events != nil:
		r.Events = l.Events
	case l.Skip != "":
		r.State, r.Error = planner.ProbeSkipped, l.Skip
	case l.OOM != "":
		r.State, r.Error = planner.ProbeOOM, l.OOM
	case l.Error != "":
		r.State, r.Error = planner.ProbeFailed, l.Error
	case l.End:
		o.ended = true
	}
}

// Limits of what a process may print.
const (
	maxLine   = 16 << 20
	maxStderr = 2 << 10 // the end of it is kept
)

// process runs the script with a plan until it ends or ctx does; then it and
// whatever it started are killed. held answers what it holds on the card.
func (b *Bencher) process(ctx context.Context, env []string, input plan, out *outcome, held func(pid int) *units.Bytes) error {
	file, err := writeScript()
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(file) }()
	cmd := exec.CommandContext(ctx, b.config.Python, file)
	cmd.Env = append(append(os.Environ(), b.config.Env...), env...)
	inGroup(cmd)
	stderr := &tail{most: maxStderr}
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s does not start: %w", b.config.Python, err)
	}
	talked := talk(cmd.Process.Pid, stdin, stdout, input, out, held)
	err = cmd.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("its process ended (%w): %s", err, stderr.lastLine())
	}
	return talked
}

// talk writes the plan, reads every line, and answers those that ask.
func talk(pid int, stdin io.WriteCloser, stdout io.Reader, input plan, out *outcome, held func(pid int) *units.Bytes) error {
	defer func() { _ = stdin.Close() }() // its process may be gone
	answers := json.NewEncoder(stdin)
	if err := answers.Encode(input); err != nil {
		return err
	}
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("it printed what is no line of a probe: %w", err)
		}
		if l.Ask != "" {
			if err := answers.Encode(map[string]*units.Bytes{"process_bytes": held(pid)}); err != nil {
				return err
			}
			continue
		}
		out.take(l)
	}
	return lines.Err()
}

// writeScript puts the script where Python finds it.
func writeScript() (string, error) {
	f, err := os.CreateTemp("", "memplan-probe-*.py")
	if err != nil {
		return "", err
	}
	_, err = f.Write(script)
	return f.Name(), errors.Join(err, f.Close())
}

// tail keeps the end of what is written to it.
type tail struct {
	most int
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b...)
	if over := len(t.text) - t.most; over > 0 {
		t.text = t.text[over:]
	}
	return len(b), nil
}

// lastLine is the last line that is not empty: of a Python traceback, the error.
func (t *tail) lastLine() string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(t.text), "�"))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
