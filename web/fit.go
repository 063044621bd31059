package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/recommend"
	"memplan/internal/units"
)

// The keys of the fit page's address that are not of the job.
const (
	goalKey        = "goal"
	probabilityKey = "fits_with"
	allowKey       = "allow"
	globalKey      = "global_batch"
)

// goalWords is what each goal is called.
var goalWords = map[recommend.Goal]string{
	recommend.SmallestChange:    "Make it fit with the smallest change",
	recommend.FastestStep:       "The fastest step at the same global batch",
	recommend.LargestMicroBatch: "The largest micro batch",
	recommend.LongestSequence:   "The longest sequence",
	recommend.FewestGPUs:        "The fewest cards",
}

// allowance is a group of paths that may change together.
type allowance struct {
	Key, Label string
	Paths      []string
	Default    bool
}

// allowances lists what the page lets change.
func allowances() []allowance {
	return []allowance{
		{"batch", "Micro batch and accumulation", []string{"training.micro_batch_size", "training.gradient_accumulation_steps"}, true},
		{"checkpointing", "Activation checkpointing", []string{"training.activation_checkpointing"}, true},
		{"kernels", "Attention and fused kernels", []string{"training.attention", "training.loss", "training.fused_kernels"}, true},
		{"optimizer", "Optimizer and its precision", []string{"training.optimizer"}, true},
		{"precision", "Number formats", []string{"training.precision", "training.weights_dtype"}, true},
		{"sharding", "Sharding", []string{"parallelism.sharding", "parallelism.fsdp", "parallelism.ddp"}, true},
		{"allocator", "Allocator settings", []string{"runtime.allocator"}, true},
		{"compilation", "Compilation", []string{"training.compile"}, false},
		{"method", "Method: LoRA, quantised base", []string{"training.method", "training.quantization", "training.weights_dtype"}, false},
	}
}

// question is the fit page's address, read.
type question struct {
	state
	Goal        recommend.Goal // empty: not asked yet
	Probability string
	Global      string
	Allow       []string // keys of allowances
}

// readQuestion takes the page's own keys out of the address; the rest is the
// job.
func readQuestion(form url.Values) question {
	job := cloneValues(form)
	for _, key := range []string{goalKey, probabilityKey, allowKey, globalKey} {
		job.Del(key)
	}
	q := question{
		state: readState(job), Goal: recommend.Goal(form.Get(goalKey)), Probability: strings.TrimSpace(form.Get(probabilityKey)),
		Global: strings.TrimSpace(form.Get(globalKey)), Allow: form[allowKey],
	}
	if len(q.Allow) == 0 {
		for _, a := range allowances() {
			if a.Default {
				q.Allow = append(q.Allow, a.Key)
			}
		}
	}
	return q
}

// advice is the question as the planner takes it, and what is wrong with it.
func (q question) advice() (planner.Advice, fault.Fields) {
	a := planner.Advice{Job: q.Job, Goal: q.Goal}
	var wrong fault.Fields
	if q.Probability != "" {
		p, err := strconv.ParseFloat(q.Probability, 64)
		if err != nil {
			wrong.Add(probabilityKey, q.Probability, "a number above 0 and below 1", "0.95")
		}
		a.Probability = p
	}
	if q.Global != "" {
		n, err := strconv.Atoi(q.Global)
		if err != nil {
			wrong.Add(globalKey, q.Global, "a whole number", "")
		}
		a.GlobalBatch = n
	}
	for _, x := range allowances() {
		if slices.Contains(q.Allow, x.Key) {
			a.Allow = append(a.Allow, x.Paths...)
		}
	}
	return a, wrong
}

// asking is the fit page's address for this state's job and a goal.
func (s state) asking(goal recommend.Goal) string {
	v := cloneValues(s.canonical())
	v.Set(goalKey, string(goal))
	return "/fit?" + encodeQuery(v, s.Unit)
}

// address is the fit page's for this question in a unit.
func (q question) address(u unit) string {
	v := cloneValues(q.canonical())
	for key, value := range map[string]string{goalKey: string(q.Goal), probabilityKey: q.Probability, globalKey: q.Global} {
		if value != "" {
			v.Set(key, value)
		}
	}
	v[allowKey] = q.Allow
	return "/fit?" + encodeQuery(v, u)
}

// goalOption is one goal of the form.
type goalOption struct {
	Goal     recommend.Goal
	Label    string
	Selected bool
}

func (q question) goals() []goalOption {
	var all []goalOption
	for _, g := range recommend.Goals() {
		all = append(all, goalOption{g, goalWords[g], g == q.Goal})
	}
	return all
}

// kept is the job's own fields, which the form carries along.
func (q question) kept() [][2]string {
	var out [][2]string
	values := q.canonical()
	for key, all := range values {
		for _, v := range all {
			out = append(out, [2]string{key, v})
		}
	}
	slices.SortFunc(out, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return out
}

// fit is the page that says what to change. A job that is wrong leads to the
// plan, which shows what is.
func (s *site) fit(w http.ResponseWriter, r *http.Request) error {
	q := readQuestion(r.URL.Query())
	if len(q.Values) == 0 {
		example, err := url.ParseQuery(exampleQuery)
		if err != nil {
			return err
		}
		q.state = readState(example)
	}
	if q.bad() {
		http.Redirect(w, r, "/plan?"+q.query(), http.StatusSeeOther)
		return nil
	}
	c := s.chrome("What to change", "Fit")
	c.Unit, c.Toggle = q.Unit, q.address(q.Unit.other())
	if q.Goal == "" {
		return render(w, r, http.StatusOK, fitPage(c, q, nil, nil))
	}
	asked, wrong := q.advice()
	var answer *recommend.Recommendation
	err := wrong.Err()
	if err == nil {
		answer, err = s.planner.Recommend(r.Context(), asked, nil)
	}
	if err == nil {
		return render(w, r, http.StatusOK, fitPage(c, q, answer, nil))
	}
	var fields fault.Fields
	switch kind := fault.KindOf(err); {
	case errors.As(err, &fields), kind == fault.Invalid, kind == fault.NotFound, kind == fault.Unavailable:
		return render(w, r, http.StatusUnprocessableEntity, fitPage(c, q, nil, err))
	}
	return err
}

// speedText is a relative speed as people say it.
func speedText(o recommend.Option) string {
	return fmt.Sprintf("%.2f to %.2f times the speed", o.RelativeSpeed.Low, o.RelativeSpeed.High)
}

// rateText is what an option does in a second.
func (q question) rateText(o recommend.Option) string {
	unit := "tokens"
	if q.Job.Training.SequenceLength <= 1 && len(q.Job.Training.ImageSize) > 0 {
		unit = "images"
	}
	return fmt.Sprintf("%s to %s %s a second, %.0f %% of the card's arithmetic", group(int64(o.TokensPerSecond.Low)), group(int64(o.TokensPerSecond.High)), unit, 100*o.MFU)
}

// patchRows is a patch as a table.
func patchRows(patch []planner.Change) [][3]string {
	var rows [][3]string
	for _, c := range patch {
		rows = append(rows, [3]string{labelOf(c.Path), plain(c.From), plain(c.To)})
	}
	return rows
}

// saves prints what a change alone saves.
func (q question) saves(b units.Bytes) string { return q.Unit.text(b) }

// table is the largest micro batch by card (rows) and length (columns).
type lengthTable struct {
	Lengths []int
	Rows    []lengthRow
}

type lengthRow struct {
	GPU   string
	Cells []recommend.LargestCell
}

func lengthsOf(cells []recommend.LargestCell) lengthTable {
	var t lengthTable
	for _, c := range cells {
		if !slices.Contains(t.Lengths, c.Length) {
			t.Lengths = append(t.Lengths, c.Length)
		}
		if n := len(t.Rows); n == 0 || t.Rows[n-1].GPU != c.GPU {
			t.Rows = append(t.Rows, lengthRow{GPU: c.GPU})
		}
		last := &t.Rows[len(t.Rows)-1]
		last.Cells = append(last.Cells, c)
	}
	return t
}

func cellText(c recommend.LargestCell) string {
	if c.AtLeast {
		return "≥ " + group(int64(c.MicroBatch))
	}
	return group(int64(c.MicroBatch))
}

// atCell is the plan with a cell's micro batch and length.
func (q question) atCell(c recommend.LargestCell) string {
	return q.patched([]planner.Change{
		{Path: "training.micro_batch_size", To: c.MicroBatch}, {Path: "training.sequence_length", To: c.Length}, {Path: "target.gpu", To: c.GPU},
	})
}

// batching is a Python function for loops that choose their batch as they run:
// the safe micro batch by length, from the table of one card.
func batching(cells []recommend.LargestCell) string {
	var pairs []string
	for _, c := range cells {
		if c.GPU == cells[0].GPU && c.MicroBatch > 0 {
			pairs = append(pairs, fmt.Sprintf("(%d, %d)", c.Length, c.MicroBatch))
		}
	}
	if len(pairs) == 0 {
		return ""
	}
	return "SAFE = [" + strings.Join(pairs, ", ") + "]  # (longest sample in tokens, micro batch) on " + cells[0].GPU + `


def safe_micro_batch(longest):
    """The most samples that fit when none is longer than this many tokens."""
    for length, batch in SAFE:
        if longest <= length:
            return batch
    length, batch = SAFE[-1]
    return max(batch * length // longest, 0)
`
}
