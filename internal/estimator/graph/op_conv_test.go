package graph

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
)

func TestConvolutionWorkspace(t *testing.T) {
	const operands = 2*3*8*8 + 4*3*3*3 + 2*4*8*8 // elements of input, filter and result
	for _, test := range []struct {
		name   string
		device Device
		dtype  DType
		ratio  float64
		want   int64
	}{
		{"tensor cores compute fp32 as TF32", ampere, F32, 1, operands * 4},
		{"half of the operands", ampere, F32, 0.5, operands * 2},
		{"no fp32 on the tensor cores of Volta", volta, F32, 1, 0},
		{"half precision on Volta", volta, F16, 1, operands * 2},
		{"none", ampere, BF16, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := test.device
			d.ConvWorkspace = test.ratio
			m := NewMachine(spec.Versions{Torch: torchToday}, d)
			m.Run(func(f *Frame) {
				x, w := f.Let("x", f.Input(test.dtype, 2, 3, 8, 8)), f.Let("w", f.Input(test.dtype, 4, 3, 3, 3))
				m.Events()
				f.Let("y", f.Convolution(x, w, nil, Conv{Stride: D(1, 1), Padding: D(1, 1), Dilation: D(1, 1), Groups: 1}))
				var got int64
				freed := map[int32]bool{}
				all := m.Events()
				for _, e := range all {
					freed[e.Block] = freed[e.Block] || e.Kind == allocator.Free
				}
				for _, e := range all {
					if e.Kind == allocator.Alloc && freed[e.Block] {
						got += e.Bytes
					}
				}
				require.Equal(t, test.want, got)
			})
			require.True(t, m.Convolved())
		})
	}
}
