package web

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"

	"memplan/internal/fault"
)

// maxQuery bounds what a page reads: a pasted config.json and every field.
const maxQuery = 256 << 10

// plan is the planner at the state of its address, or at an example where the
// address asks nothing. A form leaves empty fields in its address; the browser
// is sent on to the one without.
func (s *site) plan(w http.ResponseWriter, r *http.Request) error {
	form := r.URL.Query()
	st := readState(form)
	switch {
	case len(st.Values) == 0:
		example, err := url.ParseQuery(exampleQuery)
		if err != nil {
			return err
		}
		example.Set(unitKey, string(st.Unit))
		st = readState(example)
	case hasEmpty(form):
		http.Redirect(w, r, "/plan?"+st.query(), http.StatusSeeOther)
		return nil
	}
	return s.showPlan(w, r, st)
}

func hasEmpty(form url.Values) bool {
	for _, all := range form {
		for _, v := range all {
			if v == "" {
				return true
			}
		}
	}
	return false
}

// showPlan answers with the whole planner. A failure of our own stands in the
// place of the answer, so that the form is not lost to it.
func (s *site) showPlan(w http.ResponseWriter, r *http.Request, st state) error {
	a, st, err := s.answer(r, st)
	code, id := http.StatusOK, ""
	switch {
	case err != nil:
		st.Fault = err
		id, code = s.report(w, r, err)
	case a == nil:
		code = http.StatusUnprocessableEntity
	}
	return render(w, r, code, planPage(s.planChrome(st), s.form, st, a, id))
}

func (s *site) planChrome(st state) chrome {
	c := s.chrome("Plan", "Plan")
	c.Unit, c.Toggle = st.Unit, st.inUnit(st.Unit.other())
	return c
}

// answer asks the planner. A job that is wrong is no failure: the state comes
// back with its errors and there is no answer.
func (s *site) answer(r *http.Request, st state) (*answer, state, error) {
	if st.bad() {
		if all := fault.FieldsOf(s.planner.AllWrong(r.Context(), st.Job, st.read)); len(all) > 0 {
			st.Errors = all
		}
		return nil, st, nil
	}
	est, err := s.planner.Estimate(r.Context(), st.Job)
	if err != nil {
		st, err = st.failed(err)
		return nil, st, err
	}
	est = s.planner.WithEffects(r.Context(), st.Job, est)
	return &answer{Estimate: est, state: st, Origin: origin(r)}, st, nil
}

// failed sorts an error into the state's fields, into a sentence beside the
// form, or into a failure of the page.
func (s state) failed(err error) (state, error) {
	if f := fault.FieldsOf(err); len(f) > 0 {
		s.Errors = f
		return s, nil
	}
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound, fault.Unavailable, fault.Conflict, fault.TooLarge:
		s.Fault = err
		return s, nil
	}
	return s, err
}

// planResult is the part of the planner that changes while someone types. The
// last good answer stays in place while a field is wrong.
func (s *site) planResult(w http.ResponseWriter, r *http.Request) error {
	if !partial(r) {
		http.Redirect(w, r, "/plan?"+r.URL.RawQuery, http.StatusSeeOther)
		return nil
	}
	a, st, err := s.answer(r, readState(r.URL.Query()))
	if err != nil {
		return err
	}
	w.Header().Set("HX-Replace-Url", "/plan?"+st.query())
	c := s.planChrome(st)
	if a == nil {
		w.Header().Set("HX-Reswap", "none")
		return render(w, r, http.StatusUnprocessableEntity, aside(c, s.form, st))
	}
	return render(w, r, http.StatusOK, planUpdate(c, s.form, st, *a))
}

// planFixes is the changes that would make a job fit, alone or as part of a
// page. They take many estimates, so that a plan does not wait for them.
func (s *site) planFixes(w http.ResponseWriter, r *http.Request) error {
	st := readState(r.URL.Query())
	if st.bad() {
		return errors.Join(st.Errors.Err(), st.Fault)
	}
	check, err := s.planner.Check(r.Context(), st.Job)
	if err != nil {
		return err
	}
	if partial(r) {
		return render(w, r, http.StatusOK, fixesList(st, check.Fixes))
	}
	return render(w, r, http.StatusOK, fixesPage(s.planChrome(st), st, check))
}

// planFits is the table of largest micro batches, alone or as part of a page.
func (s *site) planFits(w http.ResponseWriter, r *http.Request) error {
	st := readState(r.URL.Query())
	if st.bad() {
		return errors.Join(st.Errors.Err(), st.Fault)
	}
	est, err := s.planner.Estimate(r.Context(), st.Job)
	if err != nil {
		return err
	}
	st.Job.Target.GPU = est.Target.GPU
	fits, err := s.planner.Fits(r.Context(), st.Job, st.cards(est.Target.GPU))
	if err != nil {
		return err
	}
	if partial(r) {
		return render(w, r, http.StatusOK, fitsTable(st, fits))
	}
	return render(w, r, http.StatusOK, fitsPage(s.planChrome(st), st, fits))
}

// models is the suggestions for what was typed into the model field.
func (s *site) models(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	query := q.Get("q")
	if query == "" {
		query = q.Get(nameOf("model.id"))
	}
	return render(w, r, http.StatusOK, modelOptions(s.planner.Models(query, suggestions)))
}

// save keeps the answer to the posted state and leads to it. Saving the same
// state twice with the same engine keeps one answer.
func (s *site) save(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, maxQuery)
	if err := r.ParseForm(); err != nil {
		return fault.Wrap(fault.Invalid, "web: read form", err)
	}
	values, err := url.ParseQuery(r.PostForm.Get("q"))
	if err != nil {
		return fault.Wrap(fault.Invalid, "web: read state", err)
	}
	a, st, err := s.answer(r, readState(values))
	if err != nil {
		return err
	}
	if a == nil {
		http.Redirect(w, r, "/plan?"+st.query(), http.StatusSeeOther)
		return nil
	}
	kept, err := s.planner.Save(r.Context(), st.Job, saveKey(a))
	if err != nil {
		return err
	}
	to := "/e/" + url.PathEscape(kept.ID)
	if st.Unit != binary {
		to += "?" + unitKey + "=" + string(st.Unit)
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

// saved is a kept answer, and whether today's engine would give another.
func (s *site) saved(w http.ResponseWriter, r *http.Request) error {
	est, err := s.planner.Saved(r.Context(), chi.URLParam(r, "id"))
	if err != nil {
		return err
	}
	u := unitOf(r.URL.Query().Get(unitKey))
	a := answer{Estimate: est, state: state{Job: est.Job, Unit: u}, Origin: origin(r)}
	c := s.chrome("Saved estimate", "")
	c.Unit, c.Toggle = u, "/e/"+est.ID
	if u.other() != binary {
		c.Toggle += "?" + unitKey + "=" + string(u.other())
	}
	now, err := s.planner.Estimate(r.Context(), est.Job)
	drift := ""
	switch {
	case err != nil:
		drift = "Today's engine cannot answer this job again: " + explainFields(err)
	case now.Peak.Required != est.Peak.Required:
		drift = fmt.Sprintf("Today's engine (%s) says %s for this job, %s.", now.Engine.Version,
			u.text(now.Peak.Required), u.signed(now.Peak.Required-est.Peak.Required))
	}
	return render(w, r, http.StatusOK, savedPage(c, a, drift))
}

// method is the page on how numbers are made.
func (s *site) method(w http.ResponseWriter, r *http.Request) error {
	return render(w, r, http.StatusOK, methodPage(s.chrome("Method", "Method")))
}

// origin is the scheme and host that this server was asked by.
func origin(r *http.Request) string {
	if r.TLS != nil {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}
