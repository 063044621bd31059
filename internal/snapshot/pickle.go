package snapshot

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
)

// Opcodes of Python's pickle protocol 4 (Lib/pickle.py), only those that the
// reader inside MemoryViz.js knows too.
const (
	opProto           = 0x80
	opStop            = '.'
	opMark            = '('
	opNone            = 'N'
	opTrue            = 0x88
	opFalse           = 0x89
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opBinInt          = 'J'
	opLong1           = 0x8a
	opBinFloat        = 'G'
	opShortBinUnicode = 0x8c
	opBinUnicode      = 'X'
	opEmptyList       = ']'
	opAppends         = 'e'
	opEmptyDict       = '}'
	opSetItems        = 'u'
	opTuple2          = 0x86
	opMemoize         = 0x94
	opBinGet          = 'h'
	opLongBinGet      = 'j'
)

// pickleBatch is how many items are appended at once, as Python's own writer
// does: JavaScript's readers push a batch as one argument list.
const pickleBatch = 1000

type (
	// dict is a Python dict with its keys in order.
	dict []pair
	pair struct {
		key   string
		value any
	}
	// twin is a tuple of two.
	twin [2]any
	// list is a list that is made while it is written.
	list = iter.Seq[any]
	// later is a value that is known only when what stands before it is
	// written.
	later func() any
	// shared is a value written once for every key and referred to from then
	// on, as an object that Python holds twice.
	shared struct {
		key   any // comparable
		value later
	}
)

// pickler writes one Python object. Its writer keeps the first error.
type pickler struct {
	w    *bufio.Writer
	memo map[any]int
}

// pickle writes v: nil, bool, int64, int, float64, string, []any and the types
// above. It panics on any other type.
func pickle(w *bufio.Writer, v any) error {
	p := &pickler{w: w, memo: map[any]int{}}
	p.op(opProto, 4)
	p.value(v)
	p.op(opStop)
	return w.Flush()
}

func (p *pickler) op(b ...byte) { _, _ = p.w.Write(b) }

func (p *pickler) value(v any) {
	switch x := v.(type) {
	case nil:
		p.op(opNone)
	case bool:
		if x {
			p.op(opTrue)
		} else {
			p.op(opFalse)
		}
	case int:
		p.integer(int64(x))
	case int64:
		p.integer(x)
	case float64:
		p.op(binary.BigEndian.AppendUint64([]byte{opBinFloat}, math.Float64bits(x))...)
	case string:
		p.once(v, func() { p.text(x) }) // v: it is boxed already
	case twin:
		p.value(x[0])
		p.value(x[1])
		p.op(opTuple2)
	case dict:
		p.dict(x)
	case []any:
		p.list(func(yield func(any) bool) {
			for _, item := range x {
				if !yield(item) {
					return
				}
			}
		})
	case list:
		p.list(x)
	case later:
		p.value(x())
	case shared:
		p.once(x.key, func() { p.value(x.value()) })
	default:
		panic(fmt.Sprintf("snapshot: no pickle for a %T", x))
	}
}

// once writes what has not been written under a key, and remembers it.
func (p *pickler) once(key any, write func()) {
	i, known := p.memo[key]
	switch {
	case !known:
		write()
		p.memo[key] = len(p.memo)
		p.op(opMemoize)
	case i <= math.MaxUint8:
		p.op(opBinGet, byte(i))
	default:
		p.op(binary.LittleEndian.AppendUint32([]byte{opLongBinGet}, uint32(i))...)
	}
}

func (p *pickler) integer(n int64) {
	switch {
	case n >= 0 && n <= math.MaxUint8:
		p.op(opBinInt1, byte(n))
	case n >= 0 && n <= math.MaxUint16:
		p.op(binary.LittleEndian.AppendUint16([]byte{opBinInt2}, uint16(n))...)
	case n >= math.MinInt32 && n <= math.MaxInt32:
		p.op(binary.LittleEndian.AppendUint32([]byte{opBinInt}, uint32(n))...)
	default:
		p.op(binary.LittleEndian.AppendUint64([]byte{opLong1, 8}, uint64(n))...)
	}
}

func (p *pickler) text(s string) {
	if len(s) <= math.MaxUint8 {
		p.op(opShortBinUnicode, byte(len(s)))
	} else {
		p.op(binary.LittleEndian.AppendUint32([]byte{opBinUnicode}, uint32(len(s)))...)
	}
	_, _ = p.w.WriteString(s)
}

func (p *pickler) dict(d dict) {
	p.op(opEmptyDict, opMark)
	for _, x := range d {
		p.value(x.key)
		p.value(x.value)
	}
	p.op(opSetItems)
}

func (p *pickler) list(items list) {
	p.op(opEmptyList)
	n := 0
	for x := range items {
		if n%pickleBatch == 0 {
			p.op(opMark)
		}
		p.value(x)
		if n++; n%pickleBatch == 0 {
			p.op(opAppends)
		}
	}
	if n%pickleBatch != 0 {
		p.op(opAppends)
	}
}
