package graph

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
)

// TestVisionOps holds functions on images to what they keep for the backward and
// to the most they have live, beside input and parameters, as
// tools/autograd/derivatives.yaml of the version says.
func TestVisionOps(t *testing.T) {
	const elements = 2 * 8 * 16 * 16
	cases := []struct {
		name  string
		torch spec.Version
		run   func(f *Frame, x *Tensor) *Tensor
		kept  int64 // beside x, the result included
		peak  int64
	}{
		{"relu", spec.Version{2, 15}, func(f *Frame, x *Tensor) *Tensor { return f.Relu(x) }, elements * 4, elements * 4},
		{"dropout by channel", spec.Version{2, 15}, func(f *Frame, x *Tensor) *Tensor { return f.Dropout2d(x, 0.1) }, elements*4 + 2*8*4, elements*4 + 2*8*4},
		{"max pooling", spec.Version{2, 15}, func(f *Frame, x *Tensor) *Tensor {
			return f.MaxPool(x, Pool{Kernel: D(2, 2), Stride: D(2, 2), Padding: D(0, 0)})
		}, elements / 4 * (4 + 8), elements / 4 * (4 + 8)},
		{"resizing", spec.Version{2, 15}, func(f *Frame, x *Tensor) *Tensor { return f.Interpolate(x, 32, 32) }, 4 * elements * 4, 4 * elements * 4},
		{"windows side by side", spec.Version{2, 15}, func(f *Frame, x *Tensor) *Tensor { return f.Unfold(x, 2) }, elements * 4, elements * 4},
		{"rolling", spec.Version{2, 15}, func(f *Frame, x *Tensor) *Tensor { return f.Roll(x) }, elements * 4, elements * 4},
		{"clipped in place, a clone kept", spec.Version{2, 15}, func(f *Frame, x *Tensor) *Tensor {
			return f.Relu6InPlace(f.AddScalar(x))
		}, 2 * elements * 4, 2 * elements * 4},
		{"clipped in place, the result kept", spec.Version{1, 8}, func(f *Frame, x *Tensor) *Tensor {
			return f.Relu6InPlace(f.AddScalar(x))
		}, elements * 4, elements * 4},
		{"softmax", spec.Version{2, 15}, func(f *Frame, x *Tensor) *Tensor { return f.Softmax(f.AddScalar(x), F32) }, elements * 4, 2 * elements * 4},
		{"softmax that keeps its input", spec.Version{1, 8}, func(f *Frame, x *Tensor) *Tensor { return f.Softmax(f.AddScalar(x), F32) }, 2 * elements * 4, 2 * elements * 4},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := NewMachine(spec.Versions{Torch: c.torch}, Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048})
			f := m.Open()
			x := f.Let("x", f.Input(F32, 2, 8, 16, 16))
			x.NeedsGrad, x.leaf = true, &Leaf{Tensor: x}
			m.Events()
			f.Let("out", c.run(f, x))
			live, peak := int64(0), int64(0)
			sizes := map[int32]int64{}
			for _, e := range m.Events() {
				switch e.Kind {
				case allocator.Alloc:
					sizes[e.Block] = e.Bytes
					live += e.Bytes
				case allocator.Free:
					live -= sizes[e.Block]
				}
				peak = max(peak, live)
			}
			require.Equal(t, c.kept, live)
			require.Equal(t, c.peak, peak)
		})
	}
}
