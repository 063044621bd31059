package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"memplan/internal/planner"
)

// clauses collects conditions with numbered parameters.
type clauses struct {
	terms []string
	args  []any
}

// add appends a condition in which each ? stands for one of the values.
func (c *clauses) add(term string, values ...any) {
	for _, v := range values {
		c.args = append(c.args, v)
		term = strings.Replace(term, "?", fmt.Sprintf("$%d", len(c.args)), 1)
	}
	c.terms = append(c.terms, term)
}

// conditions is a query's WHERE, or nothing, and its parameters.
func conditions(q planner.Query) (where string, args []any) {
	var c clauses
	for _, key := range slices.Sorted(maps.Keys(q.Labels)) {
		c.add(`id IN (SELECT estimate_id FROM estimate_labels WHERE key = ? AND value = ?)`, text(key), text(q.Labels[key]))
	}
	if q.GPU != "" {
		c.add(`gpu = ?`, text(q.GPU))
	}
	if q.Verdict != "" {
		c.add(`verdict = ?`, string(q.Verdict))
	}
	if q.Model != "" {
		c.add(`model = ?`, text(q.Model))
	}
	if q.Text != "" {
		c.add(`search LIKE ? ESCAPE '!'`, "%"+escapeLike(text(strings.ToLower(q.Text)))+"%")
	}
	if q.After != nil {
		c.add(`(created_at_us, id) < (?, ?)`, micros(q.After.CreatedAt), q.After.ID)
	}
	if len(c.terms) == 0 {
		return "", nil
	}
	return " WHERE " + strings.Join(c.terms, " AND "), c.args
}

// escapeLike makes a pattern of LIKE that means its own characters.
func escapeLike(s string) string {
	return strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(s)
}
