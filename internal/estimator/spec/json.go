package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"

	"memplan/internal/units"
)

// Several keys of the public format may be written short (a name) or long (an
// object). The methods here read both and write the shortest form that says
// the same, so that equal jobs have equal JSON.

// union writes short when it says everything, and the long form otherwise.
func union(short any, enough bool, long any) ([]byte, error) {
	if enough {
		return json.Marshal(short)
	}
	return json.Marshal(long)
}

// isObject reports whether data is a JSON object.
func isObject(data []byte) bool { return bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) }

// readUnion reads the short form into short and the long one into long.
func readUnion(data []byte, short, long any) error {
	if isObject(data) {
		return json.Unmarshal(data, long)
	}
	return json.Unmarshal(data, short)
}

type optimizerObject Optimizer

// MarshalJSON writes the name alone where nothing else is set.
func (o Optimizer) MarshalJSON() ([]byte, error) {
	rest := optimizerObject(o)
	rest.Name = ""
	return union(o.Name, o.Name != "" && isZero(rest), optimizerObject(o))
}

// UnmarshalJSON reads a name or an object.
func (o *Optimizer) UnmarshalJSON(data []byte) error {
	*o = Optimizer{}
	return readUnion(data, &o.Name, (*optimizerObject)(o))
}

type quantizationObject Quantization

// MarshalJSON writes the type alone where nothing else is set.
func (q Quantization) MarshalJSON() ([]byte, error) {
	rest := quantizationObject(q)
	rest.Type = ""
	return union(q.Type, q.Type != "" && isZero(rest), quantizationObject(q))
}

// UnmarshalJSON reads a type or an object.
func (q *Quantization) UnmarshalJSON(data []byte) error {
	*q = Quantization{}
	return readUnion(data, &q.Type, (*quantizationObject)(q))
}

type checkpointingObject Checkpointing

// MarshalJSON writes the mode alone where nothing else is set.
func (c Checkpointing) MarshalJSON() ([]byte, error) {
	rest := checkpointingObject(c)
	rest.Mode = ""
	return union(c.Mode, c.Mode != "" && isZero(rest), checkpointingObject(c))
}

// UnmarshalJSON reads a mode or an object.
func (c *Checkpointing) UnmarshalJSON(data []byte) error {
	*c = Checkpointing{}
	return readUnion(data, &c.Mode, (*checkpointingObject)(c))
}

type attentionObject Attention

// MarshalJSON writes the kernel alone where no backend is forced.
func (a Attention) MarshalJSON() ([]byte, error) {
	return union(a.Kernel, a.Kernel != "" && a.Backend == "", attentionObject(a))
}

// UnmarshalJSON reads a kernel or an object.
func (a *Attention) UnmarshalJSON(data []byte) error {
	*a = Attention{}
	return readUnion(data, &a.Kernel, (*attentionObject)(a))
}

type lossObject Loss

// MarshalJSON writes the kind alone where nothing else is set.
func (l Loss) MarshalJSON() ([]byte, error) {
	rest := lossObject(l)
	rest.Kind = ""
	return union(l.Kind, l.Kind != "" && isZero(rest), lossObject(l))
}

// UnmarshalJSON reads a kind or an object.
func (l *Loss) UnmarshalJSON(data []byte) error {
	*l = Loss{}
	return readUnion(data, &l.Kind, (*lossObject)(l))
}

type emaObject EMA

// MarshalJSON writes true for an average with nothing else set.
func (e EMA) MarshalJSON() ([]byte, error) {
	return union(true, e == EMA{}, emaObject(e))
}

// UnmarshalJSON reads true or an object. No average is written by leaving the
// key out: false has no EMA to be read into.
func (e *EMA) UnmarshalJSON(data []byte) error {
	*e = EMA{}
	on := true
	if err := readUnion(data, &on, (*emaObject)(e)); err != nil {
		return err
	}
	if !on {
		return fmt.Errorf("spec: ema: false is written by leaving the key out")
	}
	return nil
}

// MarshalJSON writes the policy's name, the list of modules, or the threshold.
func (w Wrap) MarshalJSON() ([]byte, error) {
	switch {
	case w.Policy != "":
		return json.Marshal(w.Policy)
	case len(w.Modules) > 0:
		return json.Marshal(w.Modules)
	}
	return json.Marshal(map[string]float64{"min_parameters": w.MinParameters})
}

// UnmarshalJSON reads any of the three forms.
func (w *Wrap) UnmarshalJSON(data []byte) error {
	*w = Wrap{}
	if isObject(data) {
		var long struct {
			MinParameters float64 `json:"min_parameters"`
		}
		err := json.Unmarshal(data, &long)
		w.MinParameters = long.MinParameters
		return err
	}
	return readListOr(data, &w.Modules, &w.Policy)
}

// readListOr reads a list into names, or text into text.
func readListOr(data []byte, names *[]string, text *string) error {
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		return json.Unmarshal(data, names)
	}
	return json.Unmarshal(data, text)
}

// MarshalJSON writes the kind, or the factor.
func (e ExpertLoad) MarshalJSON() ([]byte, error) {
	return union(e.Kind, e.Kind != "", map[string]float64{"factor": e.Factor})
}

// UnmarshalJSON reads a kind or a factor.
func (e *ExpertLoad) UnmarshalJSON(data []byte) error {
	*e = ExpertLoad{}
	var long struct {
		Factor float64 `json:"factor"`
	}
	err := readUnion(data, &e.Kind, &long)
	e.Factor = long.Factor
	return err
}

// allLinear stands for every linear layer in target_modules.
const allLinear = "all-linear"

// MarshalJSON writes "all-linear" or the names.
func (t Targets) MarshalJSON() ([]byte, error) { return union(allLinear, t.AllLinear, t.Names) }

// UnmarshalJSON reads "all-linear" or a list of names.
func (t *Targets) UnmarshalJSON(data []byte) error {
	*t = Targets{}
	var text string
	if err := readListOr(data, &t.Names, &text); err != nil {
		return err
	}
	if text != "" && text != allLinear {
		return fmt.Errorf("spec: target_modules is a list or %q, not %q", allLinear, text)
	}
	t.AllLinear = text == allLinear
	return nil
}

// MarshalJSON writes "auto", true or false.
func (t Toggle) MarshalJSON() ([]byte, error) {
	switch t {
	case On:
		return []byte("true"), nil
	case Off:
		return []byte("false"), nil
	}
	return []byte(`"auto"`), nil
}

// UnmarshalJSON reads "auto", true or false.
func (t *Toggle) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case `"auto"`, "null":
		*t = Auto
	case "true":
		*t = On
	case "false":
		*t = Off
	default:
		return fmt.Errorf("spec: %s is not auto, true or false", data)
	}
	return nil
}

// MarshalJSON writes the number, or "auto".
func (n AutoNumber) MarshalJSON() ([]byte, error) { return union("auto", n.Auto, n.Value) }

// UnmarshalJSON reads a number or "auto".
func (n *AutoNumber) UnmarshalJSON(data []byte) error {
	*n = AutoNumber{Set: true, Auto: string(data) == `"auto"`}
	if n.Auto {
		return nil
	}
	return json.Unmarshal(data, &n.Value)
}

// UnmarshalJSON reads a number, or text with a unit: "7B".
func (c *Count) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte(`"`)) {
		return json.Unmarshal(data, (*float64)(c))
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	v, err := units.ParseCount(text)
	*c = Count(v)
	return err
}

// gib is a size as the keys named ..._gib carry it: a number of GiB, or text
// with a unit.
type gib units.Bytes

// MarshalJSON writes the shortest number of GiB that reads back to the same
// bytes.
func (g gib) MarshalJSON() ([]byte, error) {
	v := units.Bytes(g).GiB()
	for digits := 1; digits < 17; digits++ {
		text := strconv.FormatFloat(v, 'g', digits, 64)
		if w, _ := strconv.ParseFloat(text, 64); fromGiB(w) == units.Bytes(g) {
			return json.Marshal(w)
		}
	}
	return json.Marshal(v)
}

// UnmarshalJSON reads a number of GiB, or text with a unit.
func (g *gib) UnmarshalJSON(data []byte) error {
	text := string(data)
	if bytes.HasPrefix(data, []byte(`"`)) {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	}
	b, err := units.ParseBytes(text, units.GiB)
	*g = gib(b)
	return err
}

func fromGiB(v float64) units.Bytes { return units.Bytes(math.Round(v * float64(units.GiB))) }

type targetObject Target

// targetSizes shadows the fields of Target that are bytes in Go and GiB on the
// wire.
type targetSizes struct {
	targetObject
	MemoryGiB         gib `json:"memory_gib,omitempty"`
	OtherProcessesGiB gib `json:"other_processes_gib,omitempty"`
	HeadroomGiB       gib `json:"headroom_gib,omitempty"`
}

// MarshalJSON writes sizes in GiB.
func (t Target) MarshalJSON() ([]byte, error) {
	return json.Marshal(targetSizes{targetObject(t), gib(t.MemoryGiB), gib(t.OtherProcessesGiB), gib(t.HeadroomGiB)})
}

// UnmarshalJSON reads sizes as a number of GiB or with a unit.
func (t *Target) UnmarshalJSON(data []byte) error {
	var s targetSizes
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	*t = Target(s.targetObject)
	t.MemoryGiB, t.OtherProcessesGiB, t.HeadroomGiB = units.Bytes(s.MemoryGiB), units.Bytes(s.OtherProcessesGiB), units.Bytes(s.HeadroomGiB)
	return nil
}

func isZero[T any](v T) bool { return reflect.ValueOf(v).IsZero() }
