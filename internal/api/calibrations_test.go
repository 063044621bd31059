package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/fault"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/internal/wire"
)

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// jobs are small jobs of several models, some of which differ only in size.
func jobs() []string {
	var all []string
	for _, model := range []string{"openai-community/gpt2", "openai-community/gpt2-medium", "HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-360M"} {
		for _, micro := range []int{1, 2, 4, 8} {
			all = append(all, fmt.Sprintf(`{"model": {"id": %q}, "training": {"micro_batch_size": %d, "sequence_length": 256}, "target": {"gpu": "RTX-4090"}}`, model, micro))
		}
	}
	return all
}

// measure writes the runs of a card whose context is known. The engine errs by
// half a percent, up and down.
func measure(t *testing.T, h http.Handler, held units.Bytes) []string {
	t.Helper()
	var runs []string
	for i, job := range jobs() {
		w := post(h, prefix+"/estimates?save=false&calibration=prior", job)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		reserved := read[estimator.Estimate](t, w).Peak.Reserved
		process := held + reserved + units.Bytes(float64(reserved)*0.005*float64(i%3-1))
		runs = append(runs, fmt.Sprintf(`{"job": %s, "measured": [{"metric": "process", "bytes": %d, "relation": "equals", "rounding_bytes": 1048576}], "environment": {"host": "a"}}`, job, process))
	}
	return runs
}

func TestRunsCalibrateEstimates(t *testing.T) {
	const held = 1200 * units.MiB
	h := real(t, keep(t), 0)
	runs := measure(t, h, held)
	before := read[estimator.Estimate](t, post(h, prefix+"/estimates?save=false", jobs()[5]))
	require.Equal(t, "prior", before.Peak.Interval.Source)

	w := post(h, prefix+"/runs", "["+strings.Join(runs, ",")+"]")
	require.Equal(t, http.StatusCreated, w.Code, w.Body)
	kept := read[[]reported](t, w)
	require.Len(t, kept, len(runs))
	for _, r := range kept {
		require.Nil(t, r.Flagged)
		require.Positive(t, r.Predicted.Process)
	}
	w = post(h, prefix+"/calibrations", `{"gpu": "rtx 4090", "runs": "all"}`)
	require.Equal(t, http.StatusCreated, w.Code, w.Body)
	cal := read[planner.Calibration](t, w)
	require.Nil(t, cal.NotOffered)
	require.Equal(t, len(runs), cal.RunsUsed)
	require.Equal(t, "RTX-4090", cal.GPU)
	require.Equal(t, planner.Candidate, cal.State)
	require.Equal(t, len(runs), cal.Validation.N)
	require.Less(t, cal.Validation.MedianAbsError, 0.03)
	require.Greater(t, cal.Before.MedianAbsError, cal.Validation.MedianAbsError)
	require.GreaterOrEqual(t, cal.Validation.Coverage, 0.8)
	require.Equal(t, "context", cal.Coefficients[0].Name)
	require.InDelta(t, float64(held), cal.Coefficients[0].Posterior.Mean, 2*cal.Coefficients[0].Posterior.SD)

	same := read[estimator.Estimate](t, post(h, prefix+"/estimates?save=false", jobs()[5]))
	require.Equal(t, before.Peak, same.Peak, "a candidate answers nothing")
	asked := read[estimator.Estimate](t, post(h, prefix+"/estimates?save=false&calibration="+cal.ID, jobs()[5]))
	require.Equal(t, cal.ID, asked.Peak.Interval.Source, "unless it is asked for")

	w = post(h, prefix+"/calibrations/"+cal.ID+"/activate", "")
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	after := read[estimator.Estimate](t, post(h, prefix+"/estimates?save=false", jobs()[5]))
	require.Equal(t, cal.ID, after.Peak.Interval.Source)
	require.Less(t, after.Peak.Interval.High-after.Peak.Interval.Low, (before.Peak.Interval.High-before.Peak.Interval.Low)/2)
	require.InDelta(t, (held + before.Peak.Reserved).GiB(), after.Peak.Process.GiB(), 0.1)
	sum := units.Bytes(0)
	for _, s := range after.Breakdown {
		sum += s.Bytes
	}
	require.Equal(t, after.Peak.Process, sum, "the breakdown still closes")

	right := read[planner.Accuracy](t, get(h, prefix+"/accuracy?gpu=RTX-4090"))
	require.Equal(t, len(runs), right.Runs)
	require.Len(t, right.Points, len(runs))
	require.Equal(t, "process", right.Tiers[0].Metric)
	require.Less(t, right.Tiers[0].Median, right.Tiers[0].MedianBefore)
	require.GreaterOrEqual(t, right.After.Coverage, 0.9)
	require.Less(t, right.After.Width, right.Before.Width)
	require.Equal(t, len(runs), right.After.Ran)

	elsewhere := strings.Replace(jobs()[5], "RTX-4090", "T4", 1)
	require.Equal(t, "prior", read[estimator.Estimate](t, post(h, prefix+"/estimates?save=false", elsewhere)).Peak.Interval.Source)
	w = post(h, prefix+"/estimates?save=false&calibration="+cal.ID, elsewhere)
	require.Equal(t, http.StatusConflict, w.Code, w.Body)

	w = post(h, prefix+"/calibrations/"+cal.ID+"/retire", "")
	require.Equal(t, planner.Retired, read[planner.Calibration](t, w).State)
	again := read[estimator.Estimate](t, post(h, prefix+"/estimates?save=false", jobs()[5]))
	require.Equal(t, before.Peak, again.Peak)
	list := read[wire.Page[planner.Calibration]](t, get(h, prefix+"/calibrations?gpu=RTX-4090&state=retired"))
	require.Len(t, list.Items, 1)
}

func TestTooFewRunsAreNotOffered(t *testing.T) {
	h := real(t, keep(t), 0)
	runs := measure(t, h, units.GiB)
	require.Equal(t, http.StatusCreated, post(h, prefix+"/runs", runs[0]).Code)
	w := post(h, prefix+"/calibrations", `{"gpu": "Ada"}`)
	require.Equal(t, http.StatusCreated, w.Code, w.Body)
	cal := read[planner.Calibration](t, w)
	require.Contains(t, *cal.NotOffered, "at least 12")
	w = post(h, prefix+"/calibrations/"+cal.ID+"/activate", "")
	require.Equal(t, http.StatusConflict, w.Code)
	require.Contains(t, w.Body.String(), "at least 12")
}

func TestWildRunsAreFlagged(t *testing.T) {
	h := real(t, keep(t), 0)
	measured := func(list string) string {
		return `{"job": ` + jobs()[0] + `, "measured": [` + list + `]}`
	}
	for _, test := range []struct{ name, measured, want string }{
		{"far off", `{"metric": "allocated", "bytes": 20000000000, "relation": "equals", "rounding_bytes": 0}`, "probably not in the job"},
		{"contradicts itself", `{"metric": "allocated", "bytes": 3000000000, "relation": "equals"}, {"metric": "reserved", "bytes": 2500000000, "relation": "equals"}`, "contradicts itself"},
		{"more than the card", `{"metric": "process", "bytes": 90000000000, "relation": "equals"}`, "more than RTX-4090 has"},
		{"nothing to fit", `{"metric": "allocated", "bytes": 2600000000, "relation": "equals"}`, "nothing to fit"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := post(h, prefix+"/runs", measured(test.measured))
			require.Equal(t, http.StatusCreated, w.Code, w.Body)
			require.Contains(t, *read[[]reported](t, w)[0].Flagged, test.want)
		})
	}
	elsewhere := strings.Replace(measured(`{"metric": "process", "bytes": 3000000000, "relation": "equals"}`), `{"job"`, `{"environment": {"gpu": "NVIDIA L40S"}, "job"`, 1)
	require.Contains(t, *read[[]reported](t, post(h, prefix+"/runs", elsewhere))[0].Flagged, "measured on L40S, and its job is for RTX-4090")
	w := post(h, prefix+"/runs", `{"job": {"model": {"id": "nobody/knows"}}, "measured": [{"metric": "process", "bytes": 1, "relation": "equals"}]}`)
	require.Equal(t, http.StatusCreated, w.Code, w.Body)
	require.Contains(t, *read[[]reported](t, w)[0].Flagged, "no answer")
	flagged := read[wire.Page[planner.ReportedRun]](t, get(h, prefix+"/runs?flagged=true&limit=3"))
	require.Len(t, flagged.Items, 3)
	require.NotEmpty(t, flagged.NextCursor)
	one := read[planner.ReportedRun](t, get(h, prefix+"/runs/"+flagged.Items[0].ID))
	require.Equal(t, flagged.Items[0], one)
}

func TestRunsAndCalibrationsSayWhatIsWrong(t *testing.T) {
	h := real(t, keep(t), 0)
	for _, test := range []struct{ name, path, body, want string }{
		{"no run", "/runs", `{}`, "measured"},
		{"an unknown metric", "/runs", `{"job": ` + jobs()[0] + `, "measured": [{"metric": "vram", "bytes": 1, "relation": "equals"}]}`, "metric"},
		{"no card", "/calibrations", `{}`, "gpu"},
		{"an unknown card", "/calibrations", `{"gpu": "RTX-4091"}`, "RTX-4090"},
		{"an unknown key", "/calibrations", `{"card": "T4"}`, "card"},
		{"no such run", "/calibrations", `{"gpu": "T4", "runs": ["run_aaaaaaaaaaaaaaaa"]}`, "runs[0]"},
		{"no runs", "/calibrations", `{"gpu": "T4"}`, "no run of T4"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := post(h, prefix+test.path, test.body)
			require.Equal(t, http.StatusUnprocessableEntity, w.Code, w.Body)
			require.Contains(t, w.Body.String(), test.want)
		})
	}
	require.Equal(t, http.StatusNotFound, get(h, prefix+"/runs/run_nothere").Code)
	require.Equal(t, http.StatusNotFound, post(h, prefix+"/estimates?calibration=cal_nothere", jobs()[0]).Code)
}

func TestRunsUnderAKeyAreKeptOnce(t *testing.T) {
	h := real(t, keep(t), 0)
	send := func(body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, prefix+"/runs", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	run := measure(t, h, units.GiB)[0]
	first, second := send(run), send(run)
	require.JSONEq(t, first.Body.String(), second.Body.String())
	require.Equal(t, http.StatusConflict, send(strings.Replace(run, `"a"`, `"b"`, 1)).Code)
	var page struct{ Items []json.RawMessage }
	require.NoError(t, json.Unmarshal(get(h, prefix+"/runs").Body.Bytes(), &page))
	require.Len(t, page.Items, 1)
}

func TestFilesMeasureARun(t *testing.T) {
	h := real(t, keep(t), 0)
	w := post(h, prefix+"/estimates", jobs()[3])
	id := read[estimator.Estimate](t, w).ID
	snapshot := get(h, prefix+"/estimates/"+id+"/trace?format=memory_viz")
	require.Equal(t, http.StatusOK, snapshot.Code)
	send := func(job, name string, data []byte) *httptest.ResponseRecorder {
		var body bytes.Buffer
		form := multipart.NewWriter(&body)
		require.NoError(t, form.WriteField("job", job))
		part, err := form.CreateFormFile("measured", name)
		require.NoError(t, err)
		_, _ = part.Write(data)
		require.NoError(t, form.Close())
		r := httptest.NewRequest(http.MethodPost, prefix+"/runs", &body)
		r.Header.Set("Content-Type", form.FormDataContentType())
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	w = send(jobs()[3], "snapshot.pickle", snapshot.Body.Bytes())
	require.Equal(t, http.StatusCreated, w.Code, w.Body)
	kept := read[[]reported](t, w)
	require.Len(t, kept, 1)
	require.Nil(t, kept[0].Flagged)
	require.NotEmpty(t, kept[0].Compared)
	for _, c := range kept[0].Compared {
		require.InDelta(t, float64(c.Predicted), float64(c.Measured), float64(units.MiB), c.Category)
	}
	run := read[planner.ReportedRun](t, get(h, prefix+"/runs/"+kept[0].ID))
	for _, m := range run.Measured {
		switch m.Metric {
		case "allocated":
			require.Equal(t, kept[0].Predicted.Allocated, m.Bytes)
		case "reserved":
			require.Equal(t, kept[0].Predicted.Reserved, m.Bytes)
		}
	}
	w = send(jobs()[3], "run.nsys-rep", []byte("x"))
	require.Equal(t, http.StatusUnprocessableEntity, w.Code)
	require.Contains(t, w.Body.String(), "Export instead")
	w = send(`{"model": {"id": "gpt2"}, "trainig": {}}`, "stats.txt", nil)
	require.Contains(t, w.Body.String(), "trainig", w.Body)
}

// A card of the same architecture starts from what its relative is known to
// hold.
func TestANewCardStartsFromItsRelative(t *testing.T) {
	const held = 1500 * units.MiB
	h := real(t, keep(t), 0)
	runs := measure(t, h, held)
	require.Equal(t, http.StatusCreated, post(h, prefix+"/runs", "["+strings.Join(runs, ",")+"]").Code)
	first := read[planner.Calibration](t, post(h, prefix+"/calibrations", `{"gpu": "RTX-4090"}`))
	require.Equal(t, http.StatusOK, post(h, prefix+"/calibrations/"+first.ID+"/activate", "").Code)
	require.Equal(t, http.StatusCreated, post(h, prefix+"/runs", strings.ReplaceAll(runs[3], "RTX-4090", "L40S")).Code)
	second := read[planner.Calibration](t, post(h, prefix+"/calibrations", `{"gpu": "L40S"}`))
	require.Equal(t, first.ID, second.Relative)
	require.InDelta(t, first.Coefficients[0].Posterior.Mean, second.Coefficients[0].Prior.Mean, 1)
	require.Less(t, second.Coefficients[0].Prior.SD, first.Coefficients[0].Prior.SD, "less is open than of a card without a relative")
	require.Contains(t, second.Coefficients[0].Prior.Source, first.ID)
	require.NotNil(t, second.NotOffered, "one run is not enough all the same")
}

// away is a store that cannot be reached for its calibrations.
type away struct{ planner.Store }

func (away) ListCalibrations(context.Context, planner.CalibrationQuery) ([]planner.CalibrationRecord, error) {
	return nil, fault.New(fault.Unavailable, "down")
}

func TestEstimatesGoOnWithoutTheStore(t *testing.T) {
	h := real(t, away{keep(t)}, 0)
	w := post(h, prefix+"/estimates?save=false", jobs()[0])
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.Equal(t, "prior", read[estimator.Estimate](t, w).Peak.Interval.Source)
}
