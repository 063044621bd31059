package web

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"memplan/internal/calibrate"
	"memplan/internal/planner"
	"memplan/internal/units"
	"memplan/web/chart"
)

// accuracyView is what the page shows.
type accuracyView struct {
	planner.Accuracy
	Fits   []*planner.Calibration
	GPU    string
	Unit   unit
	Origin string
}

// accuracy answers the page, or its figures as CSV.
func (s *site) accuracy(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	a := accuracyView{GPU: q.Get("gpu"), Unit: unitOf(q.Get(unitKey)), Origin: origin(r)}
	var err error
	if a.Accuracy, err = s.planner.Accuracy(r.Context(), planner.RunFilter{GPU: a.GPU}); err != nil {
		return err
	}
	page, err := s.planner.Calibrations(r.Context(), planner.CalibrationFilter{GPU: a.GPU})
	if err != nil {
		return err
	}
	a.Fits = page.Items
	c := s.chrome("Accuracy", "Accuracy")
	c.Unit = a.Unit
	toggle := url.Values{}
	if a.GPU != "" {
		toggle.Set("gpu", a.GPU)
	}
	if other := a.Unit.other(); other != binary {
		toggle.Set(unitKey, string(other))
	}
	c.Toggle = "/accuracy?" + toggle.Encode()
	return render(w, r, http.StatusOK, accuracyPage(c, a))
}

// accuracyCSV is the page's table for a spreadsheet, sizes in bytes.
func (s *site) accuracyCSV(w http.ResponseWriter, r *http.Request) error {
	a, err := s.planner.Accuracy(r.Context(), planner.RunFilter{GPU: r.URL.Query().Get("gpu")})
	if err != nil {
		return err
	}
	var b bytes.Buffer
	out := csv.NewWriter(&b)
	rows := [][]string{{"run", "name", "model", "gpu", "metric", "measured_bytes", "predicted_bytes", "predicted_before_bytes", "low_bytes", "high_bytes", "relative_error", "calibration"}}
	for _, p := range a.Points {
		rows = append(rows, []string{
			p.Run, unformulated(p.Name), unformulated(p.Model), unformulated(p.GPU), p.Metric, size(p.Measured), size(p.Predicted), size(p.Before), size(p.Low), size(p.High),
			strconv.FormatFloat(p.Error(), 'f', 6, 64), p.Calibration,
		})
	}
	if err := out.WriteAll(rows); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="memplan-accuracy.csv"`)
	_, err = b.WriteTo(w)
	return err
}

// unformulated is text that no spreadsheet takes for a formula.
func unformulated(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}

func size(b units.Bytes) string { return strconv.FormatInt(int64(b), 10) }

// calibration answers the page of one fit.
func (s *site) calibration(w http.ResponseWriter, r *http.Request) error {
	f, err := s.planner.Calibration(r.Context(), chi.URLParam(r, "id"))
	if err != nil {
		return err
	}
	c := s.chrome("Calibration "+f.ID, "Accuracy")
	c.Unit = unitOf(r.URL.Query().Get(unitKey))
	return render(w, r, http.StatusOK, calibrationPage(c, f, c.Unit))
}

// setCalibration changes a fit's state and goes back to the list.
func (s *site) setCalibration(w http.ResponseWriter, r *http.Request) error {
	change := s.planner.Retire
	if strings.HasSuffix(r.URL.Path, "/activate") {
		change = s.planner.Activate
	}
	if _, err := change(r.Context(), chi.URLParam(r, "id")); err != nil {
		return err
	}
	http.Redirect(w, r, "/accuracy#calibrations", http.StatusSeeOther)
	return nil
}

// sentence says the page in one line.
func (a accuracyView) sentence() string {
	of := ""
	if a.GPU != "" {
		of = " on " + a.GPU
	}
	if a.Runs == 0 {
		return "No measured runs" + of + " are kept here yet."
	}
	text := fmt.Sprintf("%d measured runs%s.", a.Runs, of)
	for _, t := range a.Tiers {
		text += fmt.Sprintf(" %s: median error %s.", strings.ToUpper(t.Metric[:1])+t.Metric[1:], errorText(t.Median))
	}
	return text
}

func (a accuracyView) csv() string {
	if a.GPU == "" {
		return "/accuracy.csv"
	}
	return "/accuracy.csv?" + url.Values{"gpu": {a.GPU}}.Encode()
}

func (a accuracyView) scatter() string {
	s := chart.Scatter{ID: "scatter", Title: "Predicted against measured", Desc: a.sentence(), Format: a.Unit.text}
	for _, p := range a.Points {
		s.Points = append(s.Points, chart.Dot{Group: p.Metric, Name: p.Model, Measured: p.Measured, Predicted: p.Predicted, Low: p.Low, High: p.High})
	}
	return s.SVG()
}

func runsOf(n int) string { return strconv.Itoa(n) }

// errorText prints a share in percent.
func errorText(x float64) string { return fmt.Sprintf("%.2f\u00a0%%", 100*x) }

func signedError(x float64) string {
	return strings.Replace(fmt.Sprintf("%+.2f\u00a0%%", 100*x), "-", "−", 1)
}

func whole(x float64) string { return fmt.Sprintf("%.0f\u00a0%%", 100*x) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func bytesOf(x float64) units.Bytes { return units.Bytes(x) }

// belief prints a coefficient with its spread.
func belief(b calibrate.Belief, of string, u unit) string {
	if of == "bytes" {
		return u.text(units.Bytes(b.Mean)) + " ± " + u.text(units.Bytes(b.SD))
	}
	return fmt.Sprintf("%.3f ± %.3f", b.Mean, b.SD)
}
