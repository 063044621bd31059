package wire

import "strings"

// nearest returns the candidate closest to what was written, by edit distance
// with case and dashes leveled, or "" when none is close: more than a third of
// its letters differ.
func nearest(written string, candidates []string) string {
	written = level(clip(written))
	best, least := "", 0
	for _, c := range candidates {
		d := distance(written, level(c))
		limit := max(1, max(len(c), len(written))/3)
		if d <= limit && (best == "" || d < least) {
			best, least = c, d
		}
	}
	return best
}

// level removes the differences people do not mean.
func level(s string) string {
	return strings.NewReplacer("-", "", "_", "", " ", "", ".", "").Replace(strings.ToLower(s))
}

// distance is the edit distance with transpositions (optimal string alignment).
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
