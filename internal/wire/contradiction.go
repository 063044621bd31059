package wire

import (
	"fmt"
	"slices"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// rivalry is a rule between settings that are each right by themselves.
type rivalry struct {
	path  string   // where the fault is shown
	reads []string // the other keys it looks at: when one of them is wrong already, the rule is silent
	check func(spec.Job) *fault.Field
}

// rivalries lists the contradictions that the job alone shows. What needs the
// model's own sizes or a library's defaults is the estimator's to find.
func rivalries() []rivalry {
	return []rivalry{
		{"training.adapter", []string{"training.method"}, adapterNeedsMethod},
		{"training.quantization", []string{"training.method"}, quantizationNeedsFrozen},
		{"training.sequence_lengths", nil, longestIsLongest},
		{"parallelism.tensor", []string{"model"}, tensorDividesHeads},
		{"parallelism.sharding", []string{"parallelism.data"}, noneIsOneRank},
		{"parallelism.replicate", []string{"parallelism.data"}, replicasDivideData},
		{"target.count", ranksRead, ranksAreCount},
		{"parallelism.expert", append([]string{"target.count"}, ranksRead...), expertsDivideRanks},
	}
}

var ranksRead = []string{"parallelism.data", "parallelism.tensor", "parallelism.pipeline", "parallelism.context"}

// contradictions notes settings that cannot both hold.
func (c *check) contradictions(job spec.Job, root *node) {
	for _, r := range rivalries() {
		if c.blamed(r.path) || slices.ContainsFunc(r.reads, c.blamed) {
			continue
		}
		if f := r.check(job); f != nil {
			c.found.add(r.path, root.at(r.path), f.Got, f.Want, f.Nearest)
		}
	}
}

// at is the position of the value under a dotted path.
func (n *node) at(path string) Position {
	for key := range strings.SplitSeq(path, ".") {
		if n = n.get(key); n == nil {
			return Position{}
		}
	}
	return n.pos
}

func adapterNeedsMethod(j spec.Job) *fault.Field {
	m := j.Training.Method
	if j.Training.Adapter == nil || m == "lora" || m == "dora" {
		return nil
	}
	return &fault.Field{Got: "an adapter under method " + methodOf(j), Want: "training.method lora or dora, or no adapter", Nearest: "training.method: lora"}
}

// methodOf names the method, also when it is the default.
func methodOf(j spec.Job) string {
	if j.Training.Method == "" {
		return "full (the default)"
	}
	return j.Training.Method
}

func quantizationNeedsFrozen(j spec.Job) *fault.Field {
	if j.Training.Quantization == nil || j.Training.Method != "full" && j.Training.Method != "" {
		return nil
	}
	return &fault.Field{
		Got:  j.Training.Quantization.Type + " under method " + methodOf(j),
		Want: "training.method lora, dora or frozen (a quantised base is frozen), or quantization none", Nearest: "training.method: lora",
	}
}

func longestIsLongest(j spec.Job) *fault.Field {
	l := j.Training.SequenceLengths
	if l == nil || l.Longest == 0 || max(l.Mean, l.P95) <= float64(l.Longest) {
		return nil
	}
	return &fault.Field{
		Got:  fmt.Sprintf("mean %s and p95 %s with longest %d", formatNumber(l.Mean), formatNumber(l.P95), l.Longest),
		Want: "mean and p95 up to longest",
	}
}

// headKeys are the names under which configurations give their heads.
var headKeys = []string{"num_attention_heads", "n_head", "n_heads", "num_heads"}

func tensorDividesHeads(j spec.Job) *fault.Field {
	tensor := j.Parallelism.Tensor
	if tensor <= 1 {
		return nil
	}
	for _, sizes := range []map[string]any{j.Model.Config, j.Model.Architecture} {
		for _, key := range headKeys {
			heads, ok := sizes[key].(float64)
			if !ok || heads < 1 || int(heads)%tensor == 0 {
				continue
			}
			return &fault.Field{
				Got: fmt.Sprintf("%d with %d heads", tensor, int(heads)), Want: fmt.Sprintf("a divisor of %d", int(heads)),
				Nearest: fmt.Sprint(nearestDivisor(int(heads), tensor)),
			}
		}
	}
	return nil
}

// nearestDivisor is the divisor of n closest to k, the smaller of two.
func nearestDivisor(n, k int) int {
	for d := range n {
		for _, x := range []int{k - d, k + d} {
			if x > 0 && x <= n && n%x == 0 {
				return x
			}
		}
	}
	return 1
}

func noneIsOneRank(j spec.Job) *fault.Field {
	if j.Parallelism.Sharding != "none" || j.Parallelism.Data <= 1 {
		return nil
	}
	return &fault.Field{
		Got:  fmt.Sprintf("none with %d data-parallel ranks", j.Parallelism.Data),
		Want: "ddp, zero1, zero2, zero3 or fsdp, or parallelism.data 1", Nearest: "ddp",
	}
}

func replicasDivideData(j spec.Job) *fault.Field {
	data, replicas := j.Parallelism.Data, j.Parallelism.Replicate
	if replicas <= 1 || data == 0 || data%replicas == 0 {
		return nil
	}
	return &fault.Field{
		Got: fmt.Sprintf("%d with data %d", replicas, data), Want: fmt.Sprintf("a divisor of %d", data),
		Nearest: fmt.Sprint(nearestDivisor(data, replicas)),
	}
}

// ranksAreCount requires data × tensor × pipeline × context to be the number
// of cards where both are given, and to divide it where data is left open.
func ranksAreCount(j spec.Job) *fault.Field {
	p, count := j.Parallelism, j.Target.Count
	if count == 0 || p.Data == 0 && p.Ranks() == 1 {
		return nil
	}
	if product := p.Ranks(); product == count || p.Data == 0 && count%product == 0 {
		return nil
	}
	said := fmt.Sprintf("data %d × tensor %d × pipeline %d × context %d = %d", max(p.Data, 1), max(p.Tensor, 1), max(p.Pipeline, 1), max(p.Context, 1), p.Ranks())
	if p.Data == 0 {
		said = fmt.Sprintf("a multiple of tensor %d × pipeline %d × context %d = %d", max(p.Tensor, 1), max(p.Pipeline, 1), max(p.Context, 1), p.Ranks())
	}
	return &fault.Field{Got: fmt.Sprint(count), Want: said, Nearest: fmt.Sprint(p.Ranks())}
}

func expertsDivideRanks(j spec.Job) *fault.Field {
	p := j.Parallelism
	if p.Expert <= 1 || p.Data == 0 && j.Target.Count == 0 {
		return nil
	}
	ranks := p.Ranks() / max(p.Pipeline, 1)
	if p.Data == 0 {
		ranks = j.Target.Count / max(p.Pipeline, 1)
	}
	if ranks == 0 || ranks%p.Expert == 0 {
		return nil
	}
	return &fault.Field{
		Got: fmt.Sprint(p.Expert), Want: fmt.Sprintf("a divisor of data × tensor × context = %d", ranks),
		Nearest: fmt.Sprint(nearestDivisor(ranks, p.Expert)),
	}
}
