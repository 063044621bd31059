package web

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"memplan/internal/units"
)

// unit is the one unit of sizes on a page. Its value is the key u of the URL.
type unit string

const (
	binary  unit = ""   // GiB, the default; not written into the URL
	decimal unit = "gb" // GB
)

func unitOf(u string) unit {
	if strings.EqualFold(u, string(decimal)) {
		return decimal
	}
	return binary
}

// other is what the toggle leads to.
func (u unit) other() unit {
	if u == decimal {
		return binary
	}
	return decimal
}

// String is the unit's name as headers print it.
func (u unit) String() string {
	if u == decimal {
		return "GB"
	}
	return "GiB"
}

// Small is the name of the unit for single tensors.
func (u unit) small() string {
	if u == decimal {
		return "MB"
	}
	return "MiB"
}

func (u unit) size() units.Bytes {
	if u == decimal {
		return units.GB
	}
	return units.GiB
}

func (u unit) smallSize() units.Bytes {
	if u == decimal {
		return units.MB
	}
	return units.MiB
}

// number prints b without the unit, to three significant figures but never
// more than two decimals: 143, 79.1, 8.13, 0.05.
func (u unit) number(b units.Bytes) string {
	v := float64(b) / float64(u.size())
	digits := 2
	switch a := max(v, -v); {
	case a >= 99.95:
		digits = 0
	case a >= 9.995:
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// text is number with the unit behind a space that does not break.
func (u unit) text(b units.Bytes) string { return u.number(b) + "\u00a0" + u.String() }

// signed is text with its sign, for differences.
func (u unit) signed(b units.Bytes) string {
	if b > 0 {
		return "+" + u.text(b)
	}
	return strings.Replace(u.text(b), "-", "−", 1)
}

// tick prints a value of a chart's scale: 20 GiB, 0.5 GiB.
func (u unit) tick(b units.Bytes) string {
	return strconv.FormatFloat(float64(b)/float64(u.size()), 'g', 4, 64) + "\u00a0" + u.String()
}

// megas prints a tensor's size in MiB or MB, without the unit.
func (u unit) megas(b units.Bytes) string {
	return strconv.FormatFloat(float64(b)/float64(u.smallSize()), 'f', 1, 64)
}

// exact prints whole bytes with separators, for titles.
func exact(b units.Bytes) string { return group(int64(b)) + " bytes" }

// group separates thousands.
func group(n int64) string {
	s := strconv.FormatInt(max(n, -n), 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if n < 0 {
		return "−" + s
	}
	return s
}

// column prints sizes that stand above their sum: in hundredths of the unit,
// the parts by largest remainder, so that what is printed adds up to the sum
// that is printed.
func (u unit) column(parts []units.Bytes) (printed []string, total string) {
	hundredth := float64(u.size()) / 100
	var all units.Bytes
	whole := make([]int64, len(parts))
	order := make([]int, len(parts))
	rest := make([]float64, len(parts))
	var given int64
	for i, b := range parts {
		exactly := float64(b) / hundredth
		whole[i], order[i] = int64(exactly), i
		rest[i] = exactly - float64(whole[i])
		given += whole[i]
		all += b
	}
	target := int64(float64(all)/hundredth + 0.5)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rest[b], rest[a]) })
	for _, i := range order[:min(int(max(target-given, 0)), len(order))] {
		whole[i]++
	}
	for _, n := range whole {
		printed = append(printed, hundredths(n))
	}
	return printed, hundredths(target)
}

// hundredths prints n/100 with two decimals.
func hundredths(n int64) string {
	s := strconv.FormatInt(n, 10)
	for len(s) < 3 {
		s = "0" + s
	}
	return s[:len(s)-2] + "." + s[len(s)-2:]
}
