package planner_test

import (
	"encoding/json"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
)

func TestSaveKeepsTheAnswer(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{Store: newStore(t)})
	job := gpt2()
	job.Name, job.Labels = "first", map[string]any{"team": "nlp", "run": 7.0, "dry": true}
	job.Training.Optimizer = spec.Optimizer{Name: "adamw"}
	job.Training.Checkpointing = spec.Checkpointing{Mode: "full"}
	job.Runtime.HoldsOutputs = spec.On
	saved, err := p.Save(t.Context(), job, "")
	require.NoError(t, err)
	require.Regexp(t, regexp.MustCompile(`^est_[a-z2-7]{16}$`), saved.ID)

	kept, err := p.Saved(t.Context(), saved.ID)
	require.NoError(t, err)
	require.JSONEq(t, encode(t, saved), encode(t, kept))

	page, err := p.List(t.Context(), planner.Filter{})
	require.NoError(t, err)
	require.Equal(t, []planner.Summary{{
		ID: saved.ID, CreatedAt: noon, Name: "first", Labels: map[string]string{"team": "nlp", "run": "7", "dry": "true"},
		Model: "gpt2", GPU: "A100-SXM4-80GB", Verdict: estimator.Fits, Text: saved.Summary,
		Peak: 9 * units.GiB, Required: 10 * units.GiB, Usable: saved.Target.Usable, Engine: "test",
	}}, page.Items)
}

func encode(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return string(text)
}

func TestSaveDoesNotTouchTheCache(t *testing.T) {
	p, e := newPlanner(t, planner.Config{Store: newStore(t)})
	a, err := p.Save(t.Context(), gpt2(), "")
	require.NoError(t, err)
	b, err := p.Save(t.Context(), gpt2(), "")
	require.NoError(t, err)
	require.NotEqual(t, a.ID, b.ID)
	plain, err := p.Estimate(t.Context(), gpt2())
	require.NoError(t, err)
	require.Empty(t, plain.ID)
	require.Equal(t, 1, e.count())
}

func TestSaveIsIdempotent(t *testing.T) {
	p, e := newPlanner(t, planner.Config{Store: newStore(t), CacheEntries: -1})
	first, err := p.Save(t.Context(), gpt2(), "key")
	require.NoError(t, err)
	again, err := p.Save(t.Context(), gpt2(), "key")
	require.NoError(t, err)
	require.JSONEq(t, encode(t, first), encode(t, again))
	require.Equal(t, 1, e.count(), "a repeated request is not computed again")

	other := gpt2()
	other.Name = "other"
	_, err = p.Save(t.Context(), other, "key")
	require.Equal(t, fault.Conflict, fault.KindOf(err))

	_, err = p.Save(t.Context(), spec.Job{}, "wrong")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	_, err = p.Save(t.Context(), gpt2(), "wrong")
	require.NoError(t, err, "a failed request does not use its key up")
}

func TestSaveOnceOfManyAtOnce(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{Store: newStore(t)})
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			if est, err := p.Save(t.Context(), gpt2(), "key"); err == nil {
				ids[i] = est.ID
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		require.NotEmpty(t, id)
		require.Equal(t, ids[0], id)
	}
}

func TestWithoutStore(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{})
	_, err := p.Save(t.Context(), gpt2(), "")
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	_, err = p.Saved(t.Context(), "est_aaaaaaaaaaaaaaaa")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	page, err := p.List(t.Context(), planner.Filter{})
	require.NoError(t, err)
	require.Equal(t, planner.Page{Items: []planner.Summary{}}, page)
}

func TestSavedOfWhatIsNoID(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{Store: newStore(t)})
	for _, id := range []string{"", "est_", "est_aaaaaaaaaaaaaaaa", "est_AAAAAAAAAAAAAAAA", "est_aaaaaaaaaaaaaaa1", "aaaaaaaaaaaaaaaaaaaa", "est_../../../../etc"} {
		_, err := p.Saved(t.Context(), id)
		require.Equal(t, fault.NotFound, fault.KindOf(err), id)
	}
}

func TestModelNamesInLists(t *testing.T) {
	for _, test := range []struct {
		name  string
		model spec.Model
		want  string
	}{
		{"id", spec.Model{ID: "gpt2"}, "gpt2"},
		{"id in another spelling", spec.Model{ID: "OpenAI-community/GPT2@main"}, "gpt2"},
		{"config with a name", spec.Model{Config: map[string]any{"_name_or_path": "mine/x", "model_type": "llama"}}, "mine/x"},
		{"config", spec.Model{Config: map[string]any{"_name_or_path": "", "model_type": "llama"}}, "llama"},
		{"architecture", spec.Model{Architecture: map[string]any{
			"family": "gpt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
		}}, "gpt"},
		{"config of no type", spec.Model{Config: map[string]any{"hidden_size": 64}}, "custom"},
		{"count", spec.Model{Parameters: 7e9}, "7B parameters"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, _ := newPlanner(t, planner.Config{Store: newStore(t)})
			_, err := p.Save(t.Context(), spec.Job{Model: test.model}, "")
			require.NoError(t, err)
			page, err := p.List(t.Context(), planner.Filter{})
			require.NoError(t, err)
			require.Equal(t, test.want, page.Items[0].Model)
		})
	}
}

func TestListPages(t *testing.T) {
	now := noon
	p, _ := newPlanner(t, planner.Config{Store: newStore(t), Now: func() time.Time { return now }})
	var want []string
	for i := range 7 {
		now = noon.Add(time.Duration(i/3) * time.Second)
		est, err := p.Save(t.Context(), gpt2(), "")
		require.NoError(t, err)
		want = append(want, est.ID)
	}
	for limit := 1; limit <= 8; limit++ {
		var got []string
		for cursor, pages := "", 0; ; pages++ {
			require.Less(t, pages, 8)
			page, err := p.List(t.Context(), planner.Filter{Limit: limit, Cursor: cursor})
			require.NoError(t, err)
			require.NotEmpty(t, page.Items, "no page is empty")
			for _, x := range page.Items {
				got = append(got, x.ID)
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
			require.Len(t, page.Items, limit)
		}
		require.ElementsMatch(t, want, got, "limit %d", limit)
	}
}

func TestListFilters(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{Store: newStore(t)})
	a, b := gpt2(), gpt2()
	a.Labels, a.Target.GPU = map[string]any{"team": "nlp"}, "T4"
	b.Name = "Nightly"
	for _, job := range []spec.Job{a, b} {
		_, err := p.Save(t.Context(), job, "")
		require.NoError(t, err)
	}
	for _, test := range []struct {
		name   string
		filter planner.Filter
		want   int
	}{
		{"label", planner.Filter{Labels: map[string]string{"team": "nlp"}}, 1},
		{"card by an alias", planner.Filter{GPU: "Tesla T4"}, 1},
		{"card nobody knows", planner.Filter{GPU: "none such"}, 0},
		{"text", planner.Filter{Text: "night"}, 1},
		{"model", planner.Filter{Model: "gpt2"}, 2},
		{"model by an alias", planner.Filter{Model: "openai-community/gpt2"}, 2},
		{"model nobody knows", planner.Filter{Model: "gpt"}, 0},
		{"verdict", planner.Filter{Verdict: estimator.Exceeds}, 0},
	} {
		page, err := p.List(t.Context(), test.filter)
		require.NoError(t, err, test.name)
		require.Len(t, page.Items, test.want, test.name)
	}
}

func TestListRefuses(t *testing.T) {
	p, _ := newPlanner(t, planner.Config{Store: newStore(t)})
	for _, test := range []struct {
		name   string
		filter planner.Filter
		want   []string
	}{
		{"too many", planner.Filter{Limit: 201}, []string{"limit"}},
		{"negative", planner.Filter{Limit: -1}, []string{"limit"}},
		{"no verdict", planner.Filter{Verdict: "maybe"}, []string{"verdict"}},
		{"no base64", planner.Filter{Cursor: "!"}, []string{"cursor"}},
		{"no position", planner.Filter{Cursor: "YWJj"}, []string{"cursor"}},
		{"everything", planner.Filter{Limit: 1000, Verdict: "x", Cursor: "="}, []string{"limit", "verdict", "cursor"}},
	} {
		_, err := p.List(t.Context(), test.filter)
		var got []string
		for _, f := range fault.FieldsOf(err) {
			got = append(got, f.Path)
		}
		require.Equal(t, test.want, got, test.name)
	}
}
