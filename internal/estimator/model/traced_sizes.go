package model

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"memplan/internal/estimator/graph"
)

// size is a number that may depend on the batch: times × batch + plus. A graph
// says 49, "batch", "49*batch" or "49*batch+1".
type size struct{ times, plus int64 }

// at is the number for a batch.
func (s size) at(batch int64) int64 { return s.times*batch + s.plus }

// largestSize bounds a number in a graph.
const largestSize = 1 << 40

func (s *size) UnmarshalJSON(text []byte) error {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	read, ok := readSize(v)
	if !ok {
		return fmt.Errorf("%s is no size: want a whole number, or one like 49*batch+1", text)
	}
	*s = read
	return nil
}

// readSize reads a number of a graph as it comes from JSON.
func readSize(v any) (size, bool) {
	switch x := v.(type) {
	case float64:
		return size{plus: int64(x)}, x == float64(int64(x)) && x > -largestSize && x < largestSize
	case string:
		before, after, ok := strings.Cut(x, "batch")
		if !ok {
			return size{}, false
		}
		s := size{times: 1}
		if before != "" {
			n, err := strconv.ParseInt(strings.TrimSuffix(before, "*"), 10, 40)
			if err != nil || !strings.HasSuffix(before, "*") {
				return size{}, false
			}
			s.times = n
		}
		if after != "" {
			n, err := strconv.ParseInt(after, 10, 40)
			if err != nil {
				return size{}, false
			}
			s.plus = n
		}
		return s, true
	}
	return size{}, false
}

// sizes are a shape.
type sizes []size

// at is the shape for a batch.
func (s sizes) at(batch int64) graph.Dims {
	d := graph.Dims{N: int8(len(s))}
	for i, n := range s {
		d.D[i] = n.at(batch)
	}
	return d
}

// elements is the product of the sizes for a batch, and whether they are sizes
// of a tensor.
func (s sizes) elements(batch int64) (n int64, ok bool) {
	const most = 1 << 48
	n = 1
	for _, d := range s {
		at := d.at(batch)
		if at < 0 || at > 0 && n > most/at {
			return at, false
		}
		n *= at
	}
	return n, true
}
