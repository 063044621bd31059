package spec

import (
	"strconv"
	"strings"
)

// DType is an element type by its public name.
type DType string

// The element types of the public format, and two the engine needs inside.
const (
	FP32   DType = "fp32"
	FP16   DType = "fp16"
	BF16   DType = "bf16"
	Float8 DType = "fp8"
	INT8   DType = "int8"
	INT4   DType = "int4"
	UINT8  DType = "uint8"
)

// Precision is the arithmetic of the step.
type Precision string

// The precisions of the public format.
const (
	PrecisionFP32      Precision = "fp32"
	PrecisionTF32      Precision = "tf32"
	PrecisionBF16      Precision = "bf16"
	PrecisionFP16      Precision = "fp16"
	PrecisionBF16Mixed Precision = "bf16-mixed"
	PrecisionFP16Mixed Precision = "fp16-mixed"
	PrecisionFP8Mixed  Precision = "fp8-mixed"
	PrecisionINT8Mixed Precision = "int8-mixed"
)

// Mixed returns the 16-bit type autocast computes in, or "" where the
// precision is not a mixed one.
func (p Precision) Mixed() DType {
	switch p {
	case PrecisionBF16Mixed:
		return BF16
	case PrecisionFP16Mixed:
		return FP16
	}
	return ""
}

// Pure returns the one type of a job without autocast, or "" under mixed.
func (p Precision) Pure() DType {
	switch p {
	case PrecisionFP32, PrecisionTF32:
		return FP32
	case PrecisionBF16:
		return BF16
	case PrecisionFP16:
		return FP16
	}
	return ""
}

// Toggle is a switch with a third position that leaves the choice to the
// trainer.
type Toggle uint8

// The positions of a Toggle; Auto is the zero value.
const (
	Auto Toggle = iota
	On
	Off
)

// Count is a number of things a person may write with a unit: 7B.
type Count float64

// AutoNumber is a number, or "auto", or unset (the zero value).
type AutoNumber struct {
	Set   bool
	Auto  bool
	Value float64
}

// Targets is the modules an adapter sits on: named ones, every linear layer,
// or (the zero value) the family's default.
type Targets struct {
	AllLinear bool
	Names     []string
}

// IsZero reports whether the family's default applies.
func (t Targets) IsZero() bool { return !t.AllLinear && len(t.Names) == 0 }

// Version is a library version, compared by its first three numbers. The zero
// Version means none was given.
type Version [3]int

// ParseVersion reads "2.15.0", "5.24", "2.6.0+cu124"; what follows the numbers
// is ignored. It returns the zero Version for text without a leading number.
func ParseVersion(s string) Version {
	var v Version
	for i, part := range strings.SplitN(s, ".", 3) {
		digits := strings.TrimLeft(part, "vV")
		if cut := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); cut >= 0 {
			digits = digits[:cut]
		}
		n, err := strconv.Atoi(digits)
		if err != nil {
			break
		}
		v[i] = n
	}
	return v
}

// Before reports whether v is older than w.
func (v Version) Before(w Version) bool {
	for i := range v {
		if v[i] != w[i] {
			return v[i] < w[i]
		}
	}
	return false
}

// AtLeast reports whether v is w or newer.
func (v Version) AtLeast(w Version) bool { return !v.Before(w) }

// String prints the version as "2.15.0".
func (v Version) String() string {
	return strconv.Itoa(v[0]) + "." + strconv.Itoa(v[1]) + "." + strconv.Itoa(v[2])
}

// Versions are those of the libraries whose rules apply to a job.
type Versions struct {
	Torch, Transformers, PEFT, Accelerate, BitsAndBytes, LitGPT Version
}
