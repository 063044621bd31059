package graph

import (
	"math/bits"

	"memplan/internal/estimator/spec"
)

var embeddingRule = &Rule{Name: "embedding", Source: "aten/src/ATen/native/cuda/Embedding.cu:embedding_dense_backward_cuda", Backward: embeddingBackward}

// Embedding is F.embedding: it keeps the indices, and its backward fills a
// dense gradient of the whole table.
func (f *Frame) Embedding(indices, weight *Tensor) *Tensor {
	n := f.record(embeddingRule, weight)
	f.save(n, indices)
	if n != nil {
		n.attrs.Shape = weight.Shape
	}
	shape := indices.Shape
	shape.D[shape.N] = weight.Shape.D[1]
	shape.N++
	var flat *Tensor // reshape(-1) copies what no view can show
	if _, ok := viewStride(indices, D(indices.Numel())); !ok {
		flat = f.alloc(D(indices.Numel()), indices.DType)
	}
	out := f.alloc(shape, weight.DType)
	f.letGo(flat)
	f.output(n, out, 0)
	f.consume(indices)
	return f.produce(out)
}

// sortedIndicesAbove is the number of indices up to which one kernel adds up
// the gradient without sorting them.
const sortedIndicesAbove = 3072

func embeddingBackward(m *Machine, n *Node, dOut []*Tensor) Grads {
	count, rows, width := n.saved[0].Numel(), n.attrs.Shape.D[0], n.attrs.Shape.D[1]
	var indices *Tensor
	if !n.saved[0].Contiguous() {
		indices = m.alloc(n.saved[0].Shape, I64)
	}
	var flat *Tensor
	if !dOut[0].Contiguous() {
		flat = m.alloc(D(count, width), dOut[0].DType)
	}
	defer m.letGo(flat, indices)
	if count <= sortedIndicesAbove {
		return Grads{m.alloc(n.attrs.Shape, dOut[0].DType)}
	}
	sorted, original := m.sortIndices(count, rows)
	g := m.sumSegments(count, n.attrs.Shape, dOut[0].DType)
	m.letGo(original, sorted)
	return Grads{g}
}

// sortIndices sorts the indices, and with them where they came from.
func (m *Machine) sortIndices(count, rows int64) (sorted, original *Tensor) {
	sorted, original = m.alloc(D(count), I64), m.alloc(D(count), I64)
	positions := m.alloc(D(count), I64)
	m.scratch(m.cubSortBytes(count, rows), Temporaries)
	m.release(positions)
	return sorted, original
}

// sumSegments adds up runs of equal indices in parts of ten, then the parts
// (aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu).
func (m *Machine) sumSegments(count int64, table Dims, d DType) *Tensor {
	const rowsPerThread = 10
	segments := min(count, table.D[0])
	parts := count/rowsPerThread + segments
	g := m.alloc(table, d)
	temps := []*Tensor{m.alloc(D(count), I64), m.alloc(D(), I64)} // where segments begin, how many there are
	unused := m.alloc(D(count), I64)
	m.scratch(m.cubUniqueBytes(count), Temporaries)
	m.release(unused)
	temps = append(temps, m.alloc(D(segments), I64), m.alloc(D(segments), I64))
	m.scratch(m.cubScanBytes(segments), Temporaries)
	temps = append(temps, m.alloc(D(), I64), m.alloc(D(parts), I64))
	switch {
	case !m.fewRows(parts, segments, table.D[1]):
		temps = append(temps, m.alloc(D(parts, table.D[1]), F32))
	case d == F32:
		temps = append(temps, m.alloc(D(parts), I64))
	default:
		temps = append(temps, m.alloc(D(parts), I64), m.alloc(table, F32))
	}
	m.letGo(temps...)
	return g
}

// fewRows reports whether parts are added to their row at once, in fp32: where
// rows are hit often and are too few to fill the card. Since when is not known
// between 2.6 and 2.15.
func (m *Machine) fewRows(parts, segments, width int64) bool {
	padded := roundUp(width, warp)
	blocks := divUp(segments*padded, min(padded, 1024))
	return m.Versions.Torch.AtLeast(cubSince) && parts > 4*segments && blocks < 4*m.Device.Multiprocessors
}

// The temporary storage of cub's algorithms: their arrays, each rounded up to
// 256 bytes, and 255 bytes to align the first. Tile sizes are cub's tuning for
// the card; they were read off measured sizes at many lengths.

// cubSince is when embedding_dense_backward began to sort only the bits that
// row numbers have, with the cub that describes tiles in twice the bytes
// (measured on 2.6 and 2.15; the older way is assumed in between).
var cubSince = spec.Version{2, 15}

func cubBytes(arrays ...int64) int64 {
	total := int64(255)
	for _, n := range arrays {
		total += roundUp(n, 256)
	}
	return total
}

// cubSortBytes is that of DeviceRadixSort::SortPairs on int64 keys and values
// (DispatchRadixSort::InvokeOnesweep).
func (m *Machine) cubSortBytes(count, rows int64) int64 {
	const digits = 256
	tile := int64(3840)
	switch m.Device.Capability[0] {
	case 7:
		tile = 2816
	case 9, 10, 12:
		tile = 4608
	}
	passes := int64(8)
	if m.Versions.Torch.AtLeast(cubSince) {
		passes = divUp(int64(bits.Len64(uint64(rows))), 8)
	}
	spare := count * 8
	if passes == 1 {
		spare = 0
	}
	return cubBytes(passes*digits*8, divUp(count, tile)*digits*4, spare, spare, passes*4)
}

// cubUniqueBytes is that of DeviceSelect::UniqueByKey on int64.
func (m *Machine) cubUniqueBytes(count int64) int64 {
	recent := m.Versions.Torch.AtLeast(cubSince)
	tile, state := int64(320), int64(8)
	switch c := m.Device.Capability; {
	case c[0] >= 9 && recent:
		tile = 4928
	case c[0] >= 9:
		tile = 4480
	case c[0] == 8 && c[1] == 0 && recent:
		tile = 1344
	case c[0] == 8 && c[1] == 0:
		tile = 1792
	}
	if recent {
		state = 16
	}
	return m.cubTiles(count, tile, state)
}

// cubScanBytes is that of DeviceScan::ExclusiveSum on int64.
func (m *Machine) cubScanBytes(count int64) int64 { return m.cubTiles(count, 896, 16) }

// cubTiles is the state of a single-pass scan: a word per tile and per lane of
// a warp before the first.
func (m *Machine) cubTiles(count, tile, state int64) int64 {
	words := (divUp(count, tile) + warp) * state
	if m.Versions.Torch.AtLeast(cubSince) {
		return cubBytes(words, 1)
	}
	return cubBytes(words)
}
