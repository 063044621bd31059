package graph

// reduction is the launch of a reduce kernel, as far as memory goes: when the
// work of one output is spread over several thread blocks, the kernel takes a
// staging buffer and a row of semaphores from the caching allocator
// (aten/src/ATen/native/cuda/Reduce.cuh@v2.6.0, setReduceConfig and
// global_memory_size).
type reduction struct {
	inputs, outputs int64 // elements reduced into each output; outputs
	fastest         bool  // the innermost dimension is reduced
	elementSize     int64 // of the input
	accSize         int64 // of the accumulator
	vectorOut       int64 // outputs computed together, when the innermost is kept
}

const (
	maxReduceThreads = 512
	warp             = 32
)

func lastPow2(n int64) int64 {
	p := int64(1)
	for p*2 <= n {
		p *= 2
	}
	return p
}

func divUp(a, b int64) int64 { return (a + b - 1) / b }

// scratchBytes returns the staging buffer and the semaphores; both are 0 when
// one block finishes each output.
func (r reduction) scratchBytes(d Device) (staging, semaphores int64) {
	vec := max(r.vectorOut, 1)
	dim0, dim1 := r.outputs/vec, r.inputs
	if r.fastest {
		dim0, dim1 = r.inputs, r.outputs
		if dim0 >= 4 {
			dim0 /= 4
		}
	}
	threads := maxReduceThreads / vec
	pow0, pow1 := threads, threads
	if dim0 < threads {
		pow0 = lastPow2(dim0)
	}
	if dim1 < threads {
		pow1 = lastPow2(dim1)
	}
	width := min(pow0, warp)
	height := min(pow1, threads/width)
	width = min(pow0, threads/height)

	stepIn, stepOut := int64(1), int64(1)
	if r.fastest {
		stepIn = width
	} else {
		stepOut = width
	}
	perThread := func() int64 { return divUp(r.inputs, stepIn) }
	split := perThread() >= min(height*16, 256)
	if split {
		stepIn *= height
	} else {
		stepOut *= height
	}
	grid := divUp(r.outputs/vec, stepOut)
	target := d.Multiprocessors * (d.ThreadsPerSM / (width * height))
	if !split || perThread() < 256 || grid > target {
		return 0, 0
	}
	ctas := max(min(divUp(target, grid), divUp(perThread(), 16)), divUp(perThread(), 256))
	if ctas <= 1 {
		return 0, 0
	}
	staging = r.accSize * r.outputs * ctas
	if !r.fastest {
		staging *= width * vec
	}
	return staging, 4 * grid
}

// reduceScratch takes and gives back what a reduce kernel needs.
func (m *Machine) reduceScratch(r reduction) {
	staging, semaphores := r.scratchBytes(m.Device)
	if staging == 0 {
		return
	}
	a := m.allocStorage(staging, Temporaries)
	b := m.allocStorage(semaphores, Temporaries)
	m.releaseStorage(b)
	m.releaseStorage(a)
}

// sumTo is at::sum_to: t summed over the dimensions in which shape is smaller.
// The result is owned by the caller; t is borrowed.
func (m *Machine) sumTo(t *Tensor, shape Dims) *Tensor {
	var kept [MaxDims]bool
	lead := int(t.Shape.N - shape.N)
	full := t.Shape
	for i := range int(t.Shape.N) {
		kept[i] = i >= lead && shape.D[i-lead] == t.Shape.D[i] && t.Shape.D[i] != 1
		if !kept[i] {
			full.D[i] = 1
		}
	}
	r := m.alloc(shape, t.DType)
	r.view = lead > 0 // summed with dimensions kept, then seen without them
	m.reduceScratch(reductionOf(t, kept))
	return r
}

// reductionOf describes the kernel that sums t over the dimensions not kept.
func reductionOf(t *Tensor, kept [MaxDims]bool) reduction {
	r := reduction{inputs: 1, outputs: 1, elementSize: t.DType.Size(), accSize: max(4, t.DType.Size())}
	innermost, step := -1, int64(0)
	for i := range int(t.Shape.N) {
		if kept[i] {
			r.outputs *= t.Shape.D[i]
		} else {
			r.inputs *= t.Shape.D[i]
		}
		if t.Shape.D[i] > 1 && t.Stride.D[i] > 0 && (innermost < 0 || t.Stride.D[i] < step) {
			innermost, step = i, t.Stride.D[i]
		}
	}
	if innermost < 0 {
		r.fastest = true
		return r
	}
	r.fastest = !kept[innermost]
	if !r.fastest && step == 1 {
		r.vectorOut = 4
		for r.vectorOut > 1 && t.Shape.D[innermost]%r.vectorOut != 0 {
			r.vectorOut /= 2
		}
	}
	return r
}
