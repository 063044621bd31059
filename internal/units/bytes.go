// Package units holds the quantities memplan counts in, and the one way of
// reading and printing them. GiB is 2^30 and GB is 10^9; a printed size always
// says which. It knows nothing of models or devices.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a number of bytes of memory. Everything inside memplan and on its
// wire is a whole number of them.
type Bytes int64

// Binary and decimal multiples.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30

	KB Bytes = 1e3
	MB Bytes = 1e6
	GB Bytes = 1e9
)

// GiB returns b in binary gigabytes.
func (b Bytes) GiB() float64 { return float64(b) / float64(GiB) }

// RoundUp returns b raised to a multiple of unit, which must be positive.
func (b Bytes) RoundUp(unit Bytes) Bytes { return (b + unit - 1) / unit * unit }

// String prints b with a binary unit and three significant figures or more:
// "512 B", "8.13 MiB", "79.1 GiB". A value in [1000, 1024) stays in the
// smaller unit rather than rounding to "1.00" of the larger.
func (b Bytes) String() string {
	return b.scaled([]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}, 1024)
}

// Decimal prints b with a decimal unit: "84.9 GB".
func (b Bytes) Decimal() string {
	return b.scaled([]string{"B", "kB", "MB", "GB", "TB", "PB"}, 1000)
}

func (b Bytes) scaled(names []string, base float64) string {
	if b < 0 {
		return "-" + (-b).scaled(names, base)
	}
	v, i := float64(b), 0
	for v >= base && i < len(names)-1 {
		v /= base
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", int64(b))
	}
	digits := 2
	switch {
	case v >= 99.95:
		digits = 0
	case v >= 9.995:
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + " " + names[i]
}

// suffixes are the units a person may type, longest first so that "GiB" is
// not read as "B".
var suffixes = []struct {
	name string
	size Bytes
}{
	{"tib", 1 << 40},
	{"gib", GiB},
	{"mib", MiB},
	{"kib", KiB},
	{"tb", 1e12},
	{"gb", GB},
	{"mb", MB},
	{"kb", KB},
	{"b", 1},
}

// ParseBytes reads a size with its unit: "12GiB", "80 GB", "512 B". A number
// without a unit counts in unit, so that a key named ..._gib may be given a
// plain number. It fails on negative, fractional-byte-free or unknown text.
func ParseBytes(s string, unit Bytes) (Bytes, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	size := unit
	for _, u := range suffixes {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			text, size = strings.TrimSpace(rest), u.size
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v < 0 || math.IsInf(v, 0) || math.IsNaN(v) || v*float64(size) > math.MaxInt64/2 {
		return 0, fmt.Errorf("%q is not a size: write a number and a unit, as in 12GiB or 80 GB", s)
	}
	return Bytes(math.Round(v * float64(size))), nil
}

// ParseCount reads a number of parameters: "7B", "1.1b", "350M", "8030000000".
// K, M, B and T are powers of a thousand.
func ParseCount(s string) (float64, error) {
	text := strings.ToUpper(strings.TrimSpace(s))
	scale := 1.0
	for suffix, v := range map[string]float64{"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			text, scale = strings.TrimSpace(rest), v
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, fmt.Errorf("%q is not a count: write a number, with K, M, B or T if you like, as in 7B", s)
	}
	return v * scale, nil
}

// FormatCount prints a number of parameters as people say it: "8.03B", "135M".
func FormatCount(n float64) string {
	for _, u := range []struct {
		name string
		size float64
	}{{"T", 1e12}, {"B", 1e9}, {"M", 1e6}, {"K", 1e3}} {
		if n >= u.size {
			return strconv.FormatFloat(n/u.size, 'g', 3, 64) + u.name
		}
	}
	return strconv.FormatFloat(n, 'f', 0, 64)
}
