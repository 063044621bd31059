package wire

import (
	"net/url"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/require"
)

// drawJob draws a job over the whole schema, without contradictions.
func drawJob(t *rapid.T) *node {
	job := drawValue(t, standard().root, "job")
	training, parallel, target := job.get("training"), job.get("parallelism"), job.get("target")
	if training != nil {
		training.drop("sequence_lengths")
		if training.get("adapter") != nil || training.get("quantization") != nil {
			training.set("method", &node{kind: text, text: "lora"})
		}
	}
	if parallel != nil {
		for _, key := range []string{"data", "tensor", "pipeline", "context", "expert", "replicate"} {
			parallel.drop(key)
		}
		parallel.set("data", &node{kind: number, text: "4"})
		parallel.set("sharding", &node{kind: text, text: rapid.SampledFrom([]string{"ddp", "fsdp", "zero3"}).Draw(t, "sharding")})
	}
	if target != nil {
		target.set("count", &node{kind: number, text: "4"})
	}
	return job
}

// drawValue draws a value that a rule allows.
func drawValue(t *rapid.T, r *rule, label string) *node {
	if r.free {
		return drawFree(t, label)
	}
	var readers []kind
	for k, reader := range r.by {
		if reader != nil {
			readers = append(readers, kind(k))
		}
	}
	k := rapid.SampledFrom(readers).Draw(t, label)
	reader := r.by[k]
	if len(reader.values) > 0 {
		v := *rapid.SampledFrom(reader.values).Draw(t, label)
		return &v
	}
	switch k {
	case boolean:
		return &node{kind: boolean, text: strconv.FormatBool(rapid.Bool().Draw(t, label))}
	case number:
		return &node{kind: number, text: drawNumber(t, reader, label)}
	case text:
		return &node{kind: text, text: drawText(t, reader, label)}
	case list:
		return drawList(t, reader, label)
	case object:
		return drawObject(t, reader, label)
	}
	return &node{kind: null, text: "null"}
}

func drawNumber(t *rapid.T, r *rule, label string) string {
	low, high := 0.0, 1e4
	if r.low.set {
		low = r.low.value
	}
	if r.high.set {
		high = min(high, r.high.value)
	}
	if r.whole {
		return strconv.Itoa(rapid.IntRange(int(low), int(high)).Draw(t, label))
	}
	if r.low.excluded {
		low += 0.001
	}
	return formatNumber(rapid.Float64Range(low, high).Draw(t, label))
}

func drawText(t *rapid.T, r *rule, label string) string {
	switch {
	case r.parse != nil && r.parse("7B") == nil && r.parse("12GiB") != nil:
		return "7B"
	case r.parse != nil:
		return rapid.SampledFrom([]string{"12GiB", "80 GB", "23.6 GiB", "512 MiB"}).Draw(t, label)
	case r.pattern != nil:
		return rapid.SampledFrom([]string{"8.0", "gfx90a"}).Draw(t, label)
	}
	if rapid.Bool().Draw(t, label) {
		return rapid.SampledFrom([]string{"adamw", "a,b", "true", "null", "7", "2.10", "[x", "{", `"q"`, " padded ", "none", "yes", "~", "a: b", "é\n", "- x"}).Draw(t, label)
	}
	return rapid.StringN(max(1, r.minText), 12, -1).Draw(t, label)
}

func drawList(t *rapid.T, r *rule, label string) *node {
	most := 3
	if r.maxItems > 0 {
		most = r.maxItems
	}
	n := &node{kind: list}
	for range rapid.IntRange(r.minItems, most).Draw(t, label) {
		x := drawValue(t, r.items, label)
		if !r.unique || !containsNode(n.items, x) {
			n.items = append(n.items, x)
		}
	}
	return n
}

func containsNode(items []*node, x *node) bool {
	for _, y := range items {
		if y.equal(x) {
			return true
		}
	}
	return false
}

func drawObject(t *rapid.T, r *rule, label string) *node {
	n := &node{kind: object}
	chosen := ""
	if r.oneOf != nil {
		chosen = rapid.SampledFrom(r.oneOf).Draw(t, label)
	}
	for i, f := range r.fields {
		alone := f.name == chosen || r.required != nil && contains(r.required, f.name) || i == 0 && r.minKeys > 0
		if !contains(r.oneOf, f.name) && rapid.IntRange(0, 3).Draw(t, f.name) == 0 {
			alone = true
		}
		if alone {
			n.set(f.name, drawValue(t, f.rule, f.name))
		}
	}
	if r.extra != nil {
		for range rapid.IntRange(1, 3).Draw(t, label) {
			n.set("k"+rapid.StringMatching(`[a-z. ]{0,4}`).Draw(t, label), drawValue(t, r.extra, label))
		}
	}
	return n
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

func drawFree(t *rapid.T, label string) *node {
	return rapid.SampledFrom([]*node{
		{kind: null, text: "null"},
		{kind: boolean, text: "false"},
		{kind: number, text: "1e-05"},
		{kind: number, text: "4096"},
		{kind: text, text: "llama"},
		{kind: text, text: "7"},
		{kind: list, items: []*node{{kind: number, text: "1"}, {kind: text, text: "a,b"}}},
		{kind: object, members: []member{{key: "a.b", value: &node{kind: null, text: "null"}}}},
	}).Draw(t, label)
}

// TestEveryNotationCarriesEveryJob draws jobs over the schema: each decodes,
// and reads back equal from JSON, YAML, the form and the URL.
func TestEveryNotationCarriesEveryJob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := drawJob(t)
		data := drawn.appendJSON(nil)
		job, err := DecodeJSON(data)
		require.NoError(t, err, "%s", data)
		requireRoundTrips(t, job)
	})
}

// TestOrderOfKeysDoesNotMatter: the same settings in another order are the
// same job with the same URL.
func TestOrderOfKeysDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		drawn := drawJob(t)
		job, err := DecodeJSON(drawn.appendJSON(nil))
		require.NoError(t, err)
		shuffle(t, drawn)
		again, err := DecodeJSON(drawn.appendJSON(nil))
		require.NoError(t, err)
		requireSame(t, job, again, "shuffled")
		a, err := EncodeQuery(job)
		require.NoError(t, err)
		b, err := EncodeQuery(again)
		require.NoError(t, err)
		require.Equal(t, a, b)
	})
}

func shuffle(t *rapid.T, n *node) {
	n.members = rapid.Permutation(n.members).Draw(t, "order")
	for _, m := range n.members {
		shuffle(t, m.value)
	}
}

// TestWrongValuesNeverPass puts a value of a wrong kind at one place of a job:
// the decoder names that place.
func TestWrongValuesNeverPass(t *testing.T) {
	var paths []string
	for _, f := range Fields() {
		if f.Type == "whole number" || f.Type == "boolean" || f.Type == "number" {
			paths = append(paths, f.Path)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		path := rapid.SampledFrom(paths).Draw(t, "path")
		root := &node{kind: object, members: []member{{key: "model", value: &node{kind: object, members: []member{{key: "id", value: &node{kind: text, text: "gpt2"}}}}}}}
		c := &check{d: standard(), found: &Invalid{}}
		c.descend(root, standard().root, path, &node{kind: text, text: "wrong"})
		_, err := DecodeJSON(root.appendJSON(nil))
		var invalid *Invalid
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, path, invalid.Fields[0].Path)
	})
}

// TestURLsOfTheFormAndOfTheQueryAgree: escaping less than url.Values.Encode
// does changes no value.
func TestURLsOfTheFormAndOfTheQueryAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "text")
		back, err := url.QueryUnescape(escape(s))
		require.NoError(t, err)
		require.Equal(t, s, back)
	})
}
