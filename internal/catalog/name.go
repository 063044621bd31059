package catalog

import (
	"cmp"
	"slices"
	"strings"
)

// normalise reduces a name to its ASCII letters and digits in lower case, so
// that "A100 80GB PCIe", "a100-80gb-pcie" and "A100_80GB_PCIe" are one name.
func normalise(name string) string {
	var b strings.Builder
	for _, r := range name {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case r >= 'A' && r <= 'Z':
			b.WriteRune(r - 'A' + 'a')
		}
	}
	return b.String()
}

// distance is the Levenshtein distance of two normalised names: how many
// letters must be inserted, deleted or replaced.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// maxCompared caps the length of a name that is compared by distance: what is
// longer is no typing error, and the cost grows with the product of lengths.
const maxCompared = 128

// nearest returns up to limit values of the index's targets, closest spelling
// first; of equally close ones the earlier in the table. Nearest of all are the
// spellings that begin with the name ("A100"), and those it is a part of
// ("8b-instruct") are as near as one letter. A spelling with more than half of
// the letters wrong is not near.
func nearest(name string, index map[string]int, limit int) []int {
	want := normalise(name)
	if want == "" || len(want) > maxCompared {
		return nil
	}
	best := map[int]int{}
	for spelling, target := range index {
		d := distance(want, spelling)
		switch {
		case len(want) >= 3 && strings.HasPrefix(spelling, want):
			d = 0
		case len(want) >= 3 && strings.Contains(spelling, want):
			d = 1
		case d > max(2, len(want)/2):
			continue
		}
		if old, ok := best[target]; !ok || d < old {
			best[target] = d
		}
	}
	targets := make([]int, 0, len(best))
	for t := range best {
		targets = append(targets, t)
	}
	slices.SortFunc(targets, func(a, b int) int {
		return cmp.Or(cmp.Compare(best[a], best[b]), cmp.Compare(a, b))
	})
	return targets[:min(limit, len(targets))]
}
