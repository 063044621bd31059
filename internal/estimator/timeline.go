package estimator

import (
	"bytes"
	"encoding/json"
	"strconv"

	"memplan/internal/units"
)

// Moment is a point of the timeline, by event index within first and steady
// step.
type Moment struct {
	Event      int         `json:"event"`
	Phase      string      `json:"phase"`
	Part       string      `json:"part"`
	Module     string      `json:"module"`
	Allocated  units.Bytes `json:"allocated_bytes"`
	Reserved   units.Bytes `json:"reserved_bytes"`
	ByCategory ByCategory  `json:"by_category"`
}

// ByCategory is live bytes by category, in the categories' order. On the wire
// it is an object.
type ByCategory []Share

// Of returns the bytes of a category, 0 if it has none.
func (b ByCategory) Of(category string) units.Bytes {
	for _, s := range b {
		if s.Category == category {
			return s.Bytes
		}
	}
	return 0
}

// MarshalJSON writes an object.
func (b ByCategory) MarshalJSON() ([]byte, error) { return b.append(nil), nil }

func (b ByCategory) append(to []byte) []byte {
	to = append(to, '{')
	for i, s := range b {
		if i > 0 {
			to = append(to, ',')
		}
		to = append(strconv.AppendQuote(to, s.Category), ':')
		to = strconv.AppendInt(to, int64(s.Bytes), 10)
	}
	return append(to, '}')
}

// UnmarshalJSON reads an object, keeping its order.
func (b *ByCategory) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	*b = ByCategory{}
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var s Share
		s.Category, _ = key.(string)
		if err := d.Decode(&s.Bytes); err != nil {
			return err
		}
		*b = append(*b, s)
	}
	return nil
}

// Timeline is the moments of a step. It is most of an answer's text and is
// written by hand: reflection would cost more than finding the answer.
type Timeline []Moment

// MarshalJSON writes a list, never null.
func (t Timeline) MarshalJSON() ([]byte, error) {
	out := append(make([]byte, 0, 320*len(t)+2), '[')
	for i := range t {
		if i > 0 {
			out = append(out, ',')
		}
		m := &t[i]
		out = append(out, `{"event":`...)
		out = strconv.AppendInt(out, int64(m.Event), 10)
		for _, s := range [...]struct{ key, value string }{{"phase", m.Phase}, {"part", m.Part}, {"module", m.Module}} {
			out = append(strconv.AppendQuote(append(out, ','), s.key), ':')
			out = appendText(out, s.value)
		}
		out = strconv.AppendInt(append(out, `,"allocated_bytes":`...), int64(m.Allocated), 10)
		out = strconv.AppendInt(append(out, `,"reserved_bytes":`...), int64(m.Reserved), 10)
		out = append(m.ByCategory.append(append(out, `,"by_category":`...)), '}')
	}
	return append(out, ']'), nil
}

// appendText writes a JSON string; module paths have nothing to escape.
func appendText(to []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(s) // a string cannot fail
			return append(to, quoted...)
		}
	}
	return append(append(append(to, '"'), s...), '"')
}
