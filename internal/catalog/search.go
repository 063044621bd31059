package catalog

import (
	"cmp"
	"slices"
	"strings"
)

// Models returns up to limit models that fit a query, best first; limit 0 or
// less means all. An empty query lists everything, the most used first.
//
// A query is words: "qwen 7b instruct". Every word must occur in the id or an
// alias: as a word of it (3 points), at the beginning of a word (2), anywhere
// among its letters and digits (1). Equal points are ordered by use, then by the
// fewer words the query left unmatched, then by the order of the table. When no
// model has every word, those spelt most like the query are returned.
//
// More are models that are searched beside those of the table.
func (c *Catalog) Models(query string, limit int, more ...Model) []Model {
	all := slices.Concat(c.models, more)
	if limit <= 0 {
		limit = len(all)
	}
	hits := matching(all, words(query))
	if len(hits) == 0 {
		hits = nearest(query, c.modelIndex, min(limit, 5))
	}
	found := make([]Model, 0, min(limit, len(hits)))
	for _, i := range hits[:min(limit, len(hits))] {
		found = append(found, all[i].clone())
	}
	return found
}

// matching returns the models that have every word, best first.
func matching(models []Model, query []string) []int {
	type hit struct{ index, points, unmatched int }
	var hits []hit
	for i, m := range models {
		name := words(m.ID + " " + strings.Join(m.Aliases, " "))
		points := 0
		for _, w := range query {
			p := wordPoints(w, name)
			if p == 0 {
				points = -1
				break
			}
			points += p
		}
		if points >= 0 {
			hits = append(hits, hit{i, points, len(words(bareName(m.ID)))})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.points, a.points),
			cmp.Compare(models[b.index].preference, models[a.index].preference),
			cmp.Compare(a.unmatched, b.unmatched))
	})
	indices := make([]int, len(hits))
	for i, h := range hits {
		indices[i] = h.index
	}
	return indices
}

// wordPoints says how well one word of a query fits the words of a name.
func wordPoints(word string, name []string) int {
	best := 0
	for _, n := range name {
		switch {
		case n == word:
			return 3
		case strings.HasPrefix(n, word):
			best = max(best, 2)
		}
	}
	if best == 0 && strings.Contains(strings.ReplaceAll(strings.Join(name, ""), ".", ""), strings.ReplaceAll(word, ".", "")) {
		best = 1
	}
	return best
}

// words splits a name into lower-case runs of letters, digits and dots.
func words(s string) []string {
	return strings.FieldsFunc(strings.ToLower(s), func(r rune) bool {
		return r != '.' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
}
