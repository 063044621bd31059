// Package storetest is the conformance suite of planner.Store: what the planner
// relies on, whatever the engine.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/planner"
)

// Run exercises the stores that open returns, each of them empty.
func Run(t *testing.T, open func(t *testing.T) planner.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, planner.Store)
	}{
		{"an estimate comes back as it was saved", testRoundTrip},
		{"times are kept to the microsecond, in UTC", testTimes},
		{"text that no database likes is kept without failing", testAwkwardText},
		{"an unknown id is not found", testUnknown},
		{"an id is taken once", testTakenID},
		{"a list is empty at first", testEmptyList},
		{"a list is newest first, and ids part equal times", testOrder},
		{"pages follow one another without gap or repetition", testPages},
		{"a page stays put while newer estimates arrive", testStablePages},
		{"filters", testFilters},
		{"a key answers with what it saved first", testKeyRepeated},
		{"a key used for another job is a conflict", testKeyConflict},
		{"one of many requests with the same key saves", testKeyRace},
		{"many writers do not disturb each other", testWriters},
		{"a hub configuration is replaced", testHubConfig},
		{"runs", testRuns},
		{"runs under a key", testRunKeys},
		{"runs are kept all or none", testRunsTogether},
		{"one calibration is in force for a card and framework", testCalibrations},
		{"activations at the same time leave one", testActivationRace},
		{"a store is ready", testReady},
		{"a cancelled request is not served", testCancelled},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, open(t))
		})
	}
}

// epoch is when the suite's estimates begin.
var epoch = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// record is a complete record, the n-th of a test: later n are newer.
func record(n int) planner.Record {
	return planner.Record{
		Summary: planner.Summary{
			ID: id(n), CreatedAt: epoch.Add(time.Duration(n) * time.Second),
			Name: fmt.Sprintf("Run %d", n), Labels: map[string]string{"team": "vision", "run": fmt.Sprint(n)},
			Model: "meta-llama/Llama-3.1-8B", GPU: "A100-SXM4-80GB", Verdict: estimator.Exceeds,
			Text: "Does not fit.", Peak: 80 << 30, Required: 85<<30 + 1, Usable: 79 << 30, Engine: "1.2.3",
		},
		JobHash:  fmt.Sprintf("hash-%d", n),
		Document: fmt.Appendf(nil, `{"version":1,"id":%q}`, id(n)),
	}
}

func id(n int) string { return fmt.Sprintf("est_%016d", n) }

func save(t *testing.T, s planner.Store, records ...planner.Record) {
	t.Helper()
	for _, r := range records {
		got, err := s.SaveEstimate(t.Context(), r, "")
		require.NoError(t, err)
		require.Equal(t, r.ID, got)
	}
}

func list(t *testing.T, s planner.Store, q planner.Query) []planner.Summary {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 100
	}
	items, err := s.ListEstimates(t.Context(), q)
	require.NoError(t, err)
	return items
}

func ids(items []planner.Summary) []string {
	all := []string{}
	for _, x := range items {
		all = append(all, x.ID)
	}
	return all
}

func equal(t *testing.T, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

func testRoundTrip(t *testing.T, s planner.Store) {
	want := record(1)
	save(t, s, want, record(2))
	got, err := s.LoadEstimate(t.Context(), want.ID)
	require.NoError(t, err)
	equal(t, want, got)
	equal(t, []planner.Summary{record(2).Summary, want.Summary}, list(t, s, planner.Query{}))
}

func testTimes(t *testing.T, s planner.Store) {
	r := record(1)
	r.CreatedAt = time.Date(2026, 3, 4, 5, 6, 7, 123_456_789, time.FixedZone("east", 3*3600))
	save(t, s, r)
	got, err := s.LoadEstimate(t.Context(), r.ID)
	require.NoError(t, err)
	equal(t, time.Date(2026, 3, 4, 2, 6, 7, 123_456_000, time.UTC), got.CreatedAt)
	require.Equal(t, time.UTC, got.CreatedAt.Location())
}

func testAwkwardText(t *testing.T, s planner.Store) {
	r := record(1)
	r.Name = "nul \x00, not UTF-8 \xff, quote ' and \"; Ünïcödé 模型"
	r.Labels = map[string]string{"a\x00b": "\x00", "empty": "", "a\xffb": "x"}
	save(t, s, r)
	got := list(t, s, planner.Query{})
	require.Len(t, got, 1)
	require.Equal(t, "nul \uFFFD, not UTF-8 \uFFFD, quote ' and \"; Ünïcödé 模型", got[0].Name)
	require.Len(t, list(t, s, planner.Query{Filter: planner.Filter{Text: "\x00"}}), 1)
	_, err := s.KeyedEstimate(t.Context(), "k\x00", "h")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	_, err = s.LoadEstimate(t.Context(), "\x00\xff")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

func testUnknown(t *testing.T, s planner.Store) {
	_, err := s.LoadEstimate(t.Context(), "est_nothere")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	var e *fault.Error
	require.ErrorAs(t, err, &e)
	require.Contains(t, e.Text, "est_nothere", "the text is for the user")
}

func testTakenID(t *testing.T, s planner.Store) {
	save(t, s, record(1))
	r := record(1)
	r.Name = "another"
	_, err := s.SaveEstimate(t.Context(), r, "key")
	require.Error(t, err)
	equal(t, []planner.Summary{record(1).Summary}, list(t, s, planner.Query{}))
	_, err = s.KeyedEstimate(t.Context(), "key", r.JobHash)
	require.Equal(t, fault.NotFound, fault.KindOf(err), "the key of a failed save is free")
}

func testEmptyList(t *testing.T, s planner.Store) {
	require.Empty(t, list(t, s, planner.Query{}))
}

func testOrder(t *testing.T, s planner.Store) {
	a, b, c := record(1), record(2), record(3)
	b.CreatedAt = c.CreatedAt
	b.ID, c.ID = "est_2aaaaaaaaaaaaaaa", "est_a222222222222222" // a locale may sort digits after letters
	save(t, s, c, a, b)
	require.Equal(t, []string{c.ID, b.ID, a.ID}, ids(list(t, s, planner.Query{})))
}

func testPages(t *testing.T, s planner.Store) {
	var want []string
	for n := range 11 {
		r := record(n)
		r.CreatedAt = epoch.Add(time.Duration(n/4) * time.Microsecond) // ties within pages and across them
		save(t, s, r)
		want = append([]string{r.ID}, want...)
	}
	for size := 1; size <= 12; size++ {
		var got []string
		var after *planner.Position
		for {
			page := list(t, s, planner.Query{Filter: planner.Filter{Limit: size}, After: after})
			require.LessOrEqual(t, len(page), size)
			if len(page) == 0 {
				break
			}
			got = append(got, ids(page)...)
			last := page[len(page)-1]
			after = &planner.Position{CreatedAt: last.CreatedAt, ID: last.ID}
		}
		require.Equal(t, want, got, "pages of %d", size)
	}
}

func testStablePages(t *testing.T, s planner.Store) {
	save(t, s, record(1), record(2), record(3), record(4))
	first := list(t, s, planner.Query{Filter: planner.Filter{Limit: 2}})
	save(t, s, record(5))
	last := first[1]
	next := list(t, s, planner.Query{After: &planner.Position{CreatedAt: last.CreatedAt, ID: last.ID}})
	require.Equal(t, []string{id(2), id(1)}, ids(next))
}

func testFilters(t *testing.T, s planner.Store) {
	a, b, c := record(1), record(2), record(3)
	a.Name, a.Verdict = "Fine-Tune_100% of ÄRZTE", estimator.Fits
	b.GPU, b.Labels = "T4", map[string]string{"team": "speech", "x": "vision"}
	c.Model, c.Labels = "gpt2", nil
	save(t, s, a, b, c)
	for _, test := range []struct {
		name   string
		filter planner.Filter
		want   []string
	}{
		{"label", planner.Filter{Labels: map[string]string{"team": "vision"}}, []string{a.ID}},
		{"label value of another key", planner.Filter{Labels: map[string]string{"x": "vision"}}, []string{b.ID}},
		{"two labels", planner.Filter{Labels: map[string]string{"team": "vision", "run": "1"}}, []string{a.ID}},
		{"two labels of two records", planner.Filter{Labels: map[string]string{"team": "speech", "run": "1"}}, []string{}},
		{"gpu", planner.Filter{GPU: "T4"}, []string{b.ID}},
		{"verdict", planner.Filter{Verdict: estimator.Fits}, []string{a.ID}},
		{"model", planner.Filter{Model: "gpt2"}, []string{c.ID}},
		{"part of a model is not the model", planner.Filter{Model: "gpt"}, []string{}},
		{"text in the name", planner.Filter{Text: "fine-tune"}, []string{a.ID}},
		{"text with another case beyond ASCII", planner.Filter{Text: "Ärzte"}, []string{a.ID}},
		{"text in the model", planner.Filter{Text: "GPT2"}, []string{c.ID}},
		{"text in the card", planner.Filter{Text: "a100"}, []string{c.ID, a.ID}},
		{"text across fields", planner.Filter{Text: "2meta"}, []string{}},
		{"percent means itself", planner.Filter{Text: "0% of"}, []string{a.ID}},
		{"percent is no wildcard", planner.Filter{Text: "Run%3"}, []string{}},
		{"underscore means itself", planner.Filter{Text: "tune_1"}, []string{a.ID}},
		{"underscore is no wildcard", planner.Filter{Text: "Run_3"}, []string{}},
		{"quote", planner.Filter{Text: "' OR 1=1 --"}, []string{}},
		{"all at once", planner.Filter{Text: "run", GPU: "A100-SXM4-80GB", Model: "gpt2", Verdict: estimator.Exceeds}, []string{c.ID}},
	} {
		require.Equal(t, test.want, ids(list(t, s, planner.Query{Filter: test.filter})), test.name)
	}
}

func testKeyRepeated(t *testing.T, s planner.Store) {
	_, err := s.KeyedEstimate(t.Context(), "key", "hash-1")
	require.Equal(t, fault.NotFound, fault.KindOf(err))

	first, again := record(1), record(2)
	again.JobHash = first.JobHash
	for _, r := range []planner.Record{first, again} {
		got, err := s.SaveEstimate(t.Context(), r, "key")
		require.NoError(t, err)
		require.Equal(t, first.ID, got)
	}
	got, err := s.KeyedEstimate(t.Context(), "key", first.JobHash)
	require.NoError(t, err)
	require.Equal(t, first.ID, got)
	require.Equal(t, []string{first.ID}, ids(list(t, s, planner.Query{})), "the second is not kept")
	require.Empty(t, list(t, s, planner.Query{Filter: planner.Filter{Labels: map[string]string{"run": "2"}}}))
}

func testKeyConflict(t *testing.T, s planner.Store) {
	_, err := s.SaveEstimate(t.Context(), record(1), "key")
	require.NoError(t, err)
	_, err = s.SaveEstimate(t.Context(), record(2), "key")
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	_, err = s.KeyedEstimate(t.Context(), "key", record(2).JobHash)
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	require.Equal(t, []string{id(1)}, ids(list(t, s, planner.Query{})))
}

// racers is how many goroutines contend in a test.
const racers = 8

func testKeyRace(t *testing.T, s planner.Store) {
	saved := make([]string, racers)
	errs := race(func(n int) error {
		r := record(n)
		r.JobHash = "the same"
		var err error
		saved[n], err = s.SaveEstimate(t.Context(), r, "key")
		return err
	})
	require.NoError(t, errs)
	kept := ids(list(t, s, planner.Query{}))
	require.Len(t, kept, 1)
	for _, got := range saved {
		require.Equal(t, kept[0], got)
	}
}

func testWriters(t *testing.T, s planner.Store) {
	const each = 10
	require.NoError(t, race(func(n int) error {
		for i := range each {
			if _, err := s.SaveEstimate(t.Context(), record(n*each+i), fmt.Sprintf("key-%d-%d", n, i)); err != nil {
				return err
			}
			if _, err := s.ListEstimates(t.Context(), planner.Query{Filter: planner.Filter{Limit: 5}}); err != nil {
				return err
			}
		}
		return nil
	}))
	require.Len(t, list(t, s, planner.Query{}), racers*each)
}

// race calls f from several goroutines at once and joins their errors.
func race(f func(n int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, racers)
	for n := range racers {
		wg.Go(func() { errs[n] = f(n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func testHubConfig(t *testing.T, s planner.Store) {
	_, err := s.HubConfig(t.Context(), "owner/model")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	for n, config := range []string{`{"model_type":"llama"}`, `{"model_type":"gpt2","name":"模型"}`} {
		want := planner.HubEntry{Config: []byte(config), FetchedAt: epoch.Add(time.Duration(n) * time.Hour)}
		require.NoError(t, s.SaveHubConfig(t.Context(), "owner/model", want))
		got, err := s.HubConfig(t.Context(), "owner/model")
		require.NoError(t, err)
		equal(t, want, got)
	}
	_, err = s.HubConfig(t.Context(), "owner/other")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

func testReady(t *testing.T, s planner.Store) {
	require.NoError(t, s.ReadyCheck(t.Context()))
}

func testCancelled(t *testing.T, s planner.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.SaveEstimate(ctx, record(1), "")
	require.ErrorIs(t, err, context.Canceled)
	require.Error(t, s.ReadyCheck(ctx))
	require.Empty(t, list(t, s, planner.Query{}))
}
