package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"memplan/internal/fault"
	"memplan/internal/planner"
)

func run(n int) planner.RunRecord {
	return planner.RunRecord{
		ID: fmt.Sprintf("run_%016d", n), CreatedAt: epoch.Add(time.Duration(n) * time.Second),
		GPU: "A100-SXM4-80GB", Architecture: "Ampere", Framework: planner.Software{Name: "pytorch", Version: "2.6"},
		Model: "gpt2", Search: "Run\ngpt2", Document: fmt.Appendf(nil, `{"n":%d}`, n),
	}
}

func calibration(n int) planner.CalibrationRecord {
	return planner.CalibrationRecord{
		ID: fmt.Sprintf("cal_%016d", n), CreatedAt: epoch.Add(time.Duration(n) * time.Second),
		GPU: "A100-SXM4-80GB", Framework: planner.Software{Name: "pytorch", Version: "2.6"}, State: planner.Candidate,
		Document: fmt.Appendf(nil, `{"n":%d}`, n),
	}
}

func saveRuns(t *testing.T, s planner.Store, runs ...planner.RunRecord) {
	t.Helper()
	_, err := s.SaveRuns(t.Context(), runs, planner.Key{})
	require.NoError(t, err)
}

func testRuns(t *testing.T, s planner.Store) {
	other := run(2)
	other.GPU, other.Architecture, other.Flagged = "H100-SXM5-80GB", "Hopper", "wild"
	saveRuns(t, s, run(1), other)
	got, err := s.LoadRun(t.Context(), other.ID)
	require.NoError(t, err)
	other.Search = "" // only for finding
	equal(t, other, got)
	_, err = s.LoadRun(t.Context(), "run_nothere")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	for _, test := range []struct {
		name  string
		query planner.RunQuery
		want  []string
	}{
		{"all", planner.RunQuery{}, []string{other.ID, run(1).ID}},
		{"card", planner.RunQuery{RunFilter: planner.RunFilter{GPU: "H100-SXM5-80GB"}}, []string{other.ID}},
		{"architecture", planner.RunQuery{RunFilter: planner.RunFilter{GPU: "Ampere"}}, []string{run(1).ID}},
		{"framework", planner.RunQuery{Framework: "jax"}, nil},
		{"version", planner.RunQuery{RunFilter: planner.RunFilter{Version: "2.6", Model: "gpt2"}}, []string{other.ID, run(1).ID}},
		{"flagged", planner.RunQuery{RunFilter: planner.RunFilter{Flagged: "true"}}, []string{other.ID}},
		{"not flagged", planner.RunQuery{RunFilter: planner.RunFilter{Flagged: "false"}}, []string{run(1).ID}},
		{"text", planner.RunQuery{RunFilter: planner.RunFilter{Text: "GPT"}}, []string{other.ID, run(1).ID}},
		{"the next page", planner.RunQuery{After: &planner.Position{CreatedAt: other.CreatedAt, ID: other.ID}}, []string{run(1).ID}},
	} {
		test.query.Limit = 10
		list, err := s.ListRuns(t.Context(), test.query)
		require.NoError(t, err, test.name)
		var got []string
		for _, r := range list {
			got = append(got, r.ID)
		}
		require.Equal(t, test.want, got, test.name)
	}
}

func testRunKeys(t *testing.T, s planner.Store) {
	key := planner.Key{Name: "k", Hash: "h"}
	ids, err := s.SaveRuns(t.Context(), []planner.RunRecord{run(1), run(2)}, key)
	require.NoError(t, err)
	require.Equal(t, []string{run(1).ID, run(2).ID}, ids)
	again, err := s.SaveRuns(t.Context(), []planner.RunRecord{run(3), run(4)}, key)
	require.NoError(t, err)
	require.Equal(t, ids, again)
	_, err = s.LoadRun(t.Context(), run(3).ID)
	require.Equal(t, fault.NotFound, fault.KindOf(err), "nothing more was kept")
	_, err = s.SaveRuns(t.Context(), []planner.RunRecord{run(5)}, planner.Key{Name: "k", Hash: "other"})
	require.Equal(t, fault.Conflict, fault.KindOf(err))
}

func testRunsTogether(t *testing.T, s planner.Store) {
	saveRuns(t, s, run(1))
	_, err := s.SaveRuns(t.Context(), []planner.RunRecord{run(2), run(1)}, planner.Key{Name: "k", Hash: "h"})
	require.Error(t, err, "an id is taken once")
	_, err = s.LoadRun(t.Context(), run(2).ID)
	require.Equal(t, fault.NotFound, fault.KindOf(err), "all or none")
	_, err = s.SaveRuns(t.Context(), []planner.RunRecord{run(3)}, planner.Key{Name: "k", Hash: "other"})
	require.NoError(t, err, "the key of a failed write is free")
}

func testCalibrations(t *testing.T, s planner.Store) {
	other := calibration(3)
	other.Framework.Version = "2.7"
	for _, c := range []planner.CalibrationRecord{calibration(1), calibration(2), other} {
		id, err := s.SaveCalibration(t.Context(), c, planner.Key{})
		require.NoError(t, err)
		require.Equal(t, c.ID, id)
	}
	got, err := s.LoadCalibration(t.Context(), other.ID)
	require.NoError(t, err)
	equal(t, other, got)
	states := func() map[string]string {
		list, err := s.ListCalibrations(t.Context(), planner.CalibrationQuery{CalibrationFilter: planner.CalibrationFilter{GPU: "A100-SXM4-80GB", Limit: 10}})
		require.NoError(t, err)
		m := map[string]string{}
		for _, c := range list {
			m[c.ID] = c.State
		}
		return m
	}
	for _, step := range []struct {
		name, id, state string
		want            [3]string
	}{
		{"the first", calibration(1).ID, planner.Active, [3]string{planner.Active, planner.Candidate, planner.Candidate}},
		{"another version has its own", other.ID, planner.Active, [3]string{planner.Active, planner.Candidate, planner.Active}},
		{"a newer takes its place", calibration(2).ID, planner.Active, [3]string{planner.Retired, planner.Active, planner.Active}},
		{"and back", calibration(1).ID, planner.Active, [3]string{planner.Active, planner.Retired, planner.Active}},
		{"again is nothing", calibration(1).ID, planner.Active, [3]string{planner.Active, planner.Retired, planner.Active}},
		{"none", calibration(1).ID, planner.Retired, [3]string{planner.Retired, planner.Retired, planner.Active}},
	} {
		require.NoError(t, s.SetCalibrationState(t.Context(), step.id, step.state), step.name)
		equal(t, map[string]string{calibration(1).ID: step.want[0], calibration(2).ID: step.want[1], other.ID: step.want[2]}, states())
	}
	require.Equal(t, fault.NotFound, fault.KindOf(s.SetCalibrationState(t.Context(), "cal_nothere", planner.Active)))
	active, err := s.ListCalibrations(t.Context(), planner.CalibrationQuery{CalibrationFilter: planner.CalibrationFilter{State: planner.Active, Limit: 10}})
	require.NoError(t, err)
	require.Len(t, active, 1)
}

func testActivationRace(t *testing.T, s planner.Store) {
	var wait sync.WaitGroup
	for n := range 6 {
		_, err := s.SaveCalibration(t.Context(), calibration(n), planner.Key{})
		require.NoError(t, err)
	}
	for n := range 6 {
		wait.Go(func() { _ = s.SetCalibrationState(t.Context(), calibration(n).ID, planner.Active) })
	}
	wait.Wait()
	active, err := s.ListCalibrations(t.Context(), planner.CalibrationQuery{CalibrationFilter: planner.CalibrationFilter{State: planner.Active, Limit: 10}})
	require.NoError(t, err)
	require.Len(t, active, 1, "one is in force, whoever came last")
}
