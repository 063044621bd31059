package snapshot

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"memplan/internal/fault"
)

// mostPickled is the most values a pickle may make: a memory snapshot of a
// million events with their stacks has some thirty million.
const mostPickled = 100 << 20

// unpickle reads a pickle of plain data: None, booleans, numbers, text, bytes,
// lists, tuples, dictionaries and sets of them. A pickle is a program; whatever
// would import or call something is refused by name, and nothing is run.
// Numbers come as int64 and float64, lists and tuples as []any, dictionaries as
// map[string]any by the text of their keys.
func unpickle(data []byte) (value any, err error) {
	u := &unpickler{data: data, memo: map[int]any{}}
	defer func() {
		if r := recover(); r != nil { // an index out of range: the text of the runtime says nothing to a reader
			value, err = nil, fault.New(fault.Invalid, "the pickle is broken at byte %d", u.at)
		}
	}()
	return u.run()
}

// mark is where a group of values on the stack begins.
type mark struct{}

// growing is a list or a dictionary, which a pickle fills after it was made.
type (
	growingList struct{ items []any }
	growingDict struct{ values map[string]any }
)

type unpickler struct {
	data  []byte
	at    int
	made  int
	stack []any
	memo  map[int]any
}

func (u *unpickler) run() (any, error) {
	for {
		op := u.byte()
		if op == '.' {
			s := settler{seen: map[any]any{}, left: 16*u.made + 1000}
			return s.settle(u.pop(), 0), nil
		}
		if u.made++; u.made > mostPickled {
			return nil, fault.New(fault.TooLarge, "the pickle holds more than %d values", mostPickled)
		}
		if u.constant(op) || u.text(op) || u.container(op) || u.remember(op) {
			continue
		}
		return nil, fault.New(fault.Invalid, "the pickle is no plain data: %s, which a memory snapshot never needs, and which is not run here", describe(op))
	}
}

// describe names an instruction that is refused.
func describe(op byte) string {
	switch op {
	case 'c', 0x93:
		return "it imports a name"
	case 'R', 'i', 'o', 0x81, 0x92, 'b':
		return "it calls a function"
	case 'P', 'Q', 0x82, 0x83, 0x84:
		return "it refers to an object outside"
	}
	return fmt.Sprintf("instruction %#x", op)
}

// constant reads a value that stands by itself.
func (u *unpickler) constant(op byte) bool {
	switch op {
	case 'N':
		u.push(nil)
	case 0x88:
		u.push(true)
	case 0x89:
		u.push(false)
	case 'K':
		u.push(int64(u.byte()))
	case 'M':
		u.push(int64(binary.LittleEndian.Uint16(u.take(2))))
	case 'J':
		u.push(int64(int32(binary.LittleEndian.Uint32(u.take(4)))))
	case 0x8a:
		u.push(long(u.take(int(u.byte()))))
	case 0x8b:
		u.push(long(u.take(u.size4())))
	case 'G':
		u.push(math.Float64frombits(binary.BigEndian.Uint64(u.take(8))))
	case 'I', 'L', 'F':
		u.push(number(u.line()))
	default:
		return false
	}
	return true
}

// text reads strings and bytes.
func (u *unpickler) text(op byte) bool {
	switch op {
	case 0x8c, 'C', 'U':
		u.push(string(u.take(int(u.byte()))))
	case 'X', 'B', 'T':
		u.push(string(u.take(u.size4())))
	case 0x8d, 0x8e, 0x96:
		u.push(string(u.take(int(binary.LittleEndian.Uint64(u.take(8))))))
	case 'V':
		u.push(u.line())
	case 0x80:
		u.byte() // the protocol
	case 0x95:
		u.take(8) // a frame's length
	default:
		return false
	}
	return true
}

// container makes and fills lists, tuples and dictionaries.
func (u *unpickler) container(op byte) bool {
	switch op {
	case '(':
		u.push(mark{})
	case ']', 0x8f:
		u.push(&growingList{})
	case '}':
		u.push(&growingDict{map[string]any{}})
	case ')':
		u.push([]any{})
	case 0x85, 0x86, 0x87:
		u.push(append([]any{}, u.popN(int(op-0x84))...))
	case 't', 0x91:
		u.push(u.popMark())
	case 'l':
		u.push(&growingList{u.popMark()})
	case 'd':
		d := &growingDict{map[string]any{}}
		d.set(u.popMark())
		u.push(d)
	case 'a':
		x := u.pop()
		u.list().items = append(u.list().items, x)
	case 'e', 0x90:
		xs := u.popMark()
		u.list().items = append(u.list().items, xs...)
	case 's':
		xs := append([]any{}, u.popN(2)...)
		u.dict().set(xs)
	case 'u':
		xs := u.popMark()
		u.dict().set(xs)
	default:
		return false
	}
	return true
}

// remember writes and reads the memo.
func (u *unpickler) remember(op byte) bool {
	switch op {
	case 0x94:
		u.memo[len(u.memo)] = u.top()
	case 'q':
		u.memo[int(u.byte())] = u.top()
	case 'r':
		u.memo[u.size4()] = u.top()
	case 'p':
		u.memo[int(number(u.line()).(int64))] = u.top()
	case 'h':
		u.push(u.recall(int(u.byte())))
	case 'j':
		u.push(u.recall(u.size4()))
	case 'g':
		u.push(u.recall(int(number(u.line()).(int64))))
	case '0':
		u.pop()
	case '1':
		u.popMark()
	case '2':
		u.push(u.top())
	default:
		return false
	}
	return true
}

func (u *unpickler) recall(i int) any {
	v, ok := u.memo[i]
	if !ok {
		panic("memo")
	}
	return v
}

func (u *unpickler) take(n int) []byte {
	if n < 0 || n > len(u.data)-u.at {
		panic("past the end")
	}
	b := u.data[u.at : u.at+n]
	u.at += n
	return b
}

func (u *unpickler) byte() byte { return u.take(1)[0] }

func (u *unpickler) size4() int { return int(binary.LittleEndian.Uint32(u.take(4))) }

func (u *unpickler) line() string {
	from := u.at
	for u.byte() != '\n' {
	}
	return string(u.data[from : u.at-1])
}

func (u *unpickler) push(v any) { u.stack = append(u.stack, v) }
func (u *unpickler) top() any   { return u.stack[len(u.stack)-1] }

func (u *unpickler) pop() any {
	v := u.top()
	u.stack = u.stack[:len(u.stack)-1]
	return v
}

func (u *unpickler) popN(n int) []any {
	from := len(u.stack) - n
	xs := u.stack[from:]
	u.stack = u.stack[:from]
	return xs
}

// popMark takes everything down to the last mark.
func (u *unpickler) popMark() []any {
	for i := len(u.stack) - 1; ; i-- {
		if _, ok := u.stack[i].(mark); ok {
			xs := append([]any{}, u.stack[i+1:]...)
			u.stack = u.stack[:i]
			return xs
		}
	}
}

func (u *unpickler) list() *growingList { return u.top().(*growingList) }
func (u *unpickler) dict() *growingDict { return u.top().(*growingDict) }

func (d *growingDict) set(pairs []any) {
	for i := 0; i+1 < len(pairs); i += 2 {
		d.values[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
}

// deepest is how far values may stand in one another.
const deepest = 200

// settler puts plain lists and maps in the place of growing ones. Values that
// several places share are settled once, and one that holds itself is left out.
type settler struct {
	seen map[any]any
	left int // values that may still be made: tuples within tuples could be without end
}

func (s *settler) settle(v any, depth int) any {
	if s.left--; depth > deepest || s.left < 0 {
		panic("too deep, or too much")
	}
	switch v := v.(type) {
	case *growingList:
		return s.once(v, func() any { return s.all(v.items, depth) })
	case *growingDict:
		return s.once(v, func() any {
			for k, x := range v.values {
				v.values[k] = s.settle(x, depth+1)
			}
			return v.values
		})
	case []any:
		return s.all(v, depth)
	}
	return v
}

func (s *settler) once(v any, make func() any) any {
	if done, ok := s.seen[v]; ok {
		return done
	}
	s.seen[v] = nil
	done := make()
	s.seen[v] = done
	return done
}

func (s *settler) all(items []any, depth int) []any {
	out := make([]any, len(items))
	for i, x := range items {
		out[i] = s.settle(x, depth+1)
	}
	return out
}

// long is a whole number of any length; what no int64 holds comes as text.
func long(b []byte) any {
	if len(b) > 8 {
		return fmt.Sprintf("%x", b)
	}
	var n uint64
	for i, x := range b {
		n |= uint64(x) << (8 * i)
	}
	if k := len(b); k > 0 && k < 8 && b[k-1]&0x80 != 0 {
		n |= ^uint64(0) << (8 * k)
	}
	return int64(n)
}

// number reads a number written as text: 17, 17L, 01 (true) or 1.5.
func number(s string) any {
	if n := len(s); n > 0 && s[n-1] == 'L' {
		s = s[:n-1]
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	f, _ := strconv.ParseFloat(s, 64)
	return f
}
