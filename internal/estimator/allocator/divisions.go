package allocator

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// intervals are the size classes of roundup_power2_divisions: 1 MiB to 64 GiB.
const intervals = 16

// Divisions is the option roundup_power2_divisions: how many steps lie between
// two powers of two, for sizes up to 2 MiB, from 2 to 4 MiB, ... , from 32 GiB
// on. 0 and 1 leave the interval alone; other values are powers of two.
type Divisions [intervals]int32

// UniformDivisions is the option's single form, roundup_power2_divisions:n.
func UniformDivisions(n int) Divisions {
	var d Divisions
	for i := range d {
		d[i] = int32(n)
	}
	return d
}

// ParseDivisions reads the option as PYTORCH_ALLOC_CONF writes it: "4", or
// "[256:1,512:2,1024:4,>:8]", where each key is a power of two in MiB. As in
// torch, the first key also stands for all smaller sizes, a size between two
// keys is left alone, and ">" stands for all beyond the last key. (torch 2.6
// lets ">" overwrite the last key itself.)
func ParseDivisions(text string) (Divisions, error) {
	text = strings.ReplaceAll(text, " ", "")
	list, bracketed := strings.CutPrefix(text, "[")
	if !bracketed {
		n, err := parsePower(text, 1)
		return UniformDivisions(n), err
	}
	list, closed := strings.CutSuffix(list, "]")
	if !closed {
		return Divisions{}, fmt.Errorf("roundup_power2_divisions %q: the list does not end in ]", text)
	}
	var d Divisions
	next := -1 // behind the last key
	for item := range strings.SplitSeq(list, ",") {
		var err error
		if next, err = d.set(item, next); err != nil {
			return Divisions{}, err
		}
	}
	return d, nil
}

// set applies one "key:divisions" and returns the interval behind it.
func (d *Divisions) set(item string, next int) (int, error) {
	key, value, ok := strings.Cut(item, ":")
	if !ok {
		return 0, fmt.Errorf("roundup_power2_divisions %q: want interval:divisions", item)
	}
	n, err := parsePower(value, 0)
	if err != nil {
		return 0, err
	}
	from, to := max(next, 0), intervals // of ">"
	if key != ">" {
		megabytes, err := parsePower(key, 1)
		if err != nil {
			return 0, err
		}
		to = min(bits.Len(uint(megabytes)), intervals)
		if from = to - 1; next < 0 {
			from = 0
		}
	}
	for i := from; i < to; i++ {
		d[i] = int32(n)
	}
	return to, nil
}

func parsePower(text string, least int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n&(n-1) != 0 || n > 1<<20 {
		return 0, fmt.Errorf("roundup_power2_divisions: %q is not a power of two", text)
	}
	return n, nil
}
