package planner

import (
	"slices"
	"strings"

	"memplan/internal/estimator"
	"memplan/internal/jobfile"
	"memplan/internal/recommend"
)

// stated lists what of an estimate's job was said, and not filled in.
func stated(est *estimator.Estimate) []string {
	return slices.DeleteFunc(jobfile.Settings(est.Job), func(path string) bool {
		return slices.ContainsFunc(est.Assumptions, func(a estimator.Assumption) bool {
			return a.Path == path || strings.HasPrefix(path, a.Path+".")
		})
	})
}

// snippets is the estimated job in the words of every tool it suits.
func snippets(est *estimator.Estimate) ([]recommend.Snippet, error) {
	all := []recommend.Snippet{}
	subject := jobfile.Subject{Job: est.Job, Told: stated(est), Need: est.Peak.Interval.High, Host: est.HostMemory}
	for _, f := range jobfile.Formats() {
		if !f.Suits(est.Job) {
			continue
		}
		w, err := f.Write(subject)
		if err != nil {
			return nil, err
		}
		all = append(all, recommend.Snippet{Tool: f.Name, Title: f.Title, Text: w.Text, Unsaid: append([]string{}, w.Unsaid...)})
	}
	return all, nil
}
