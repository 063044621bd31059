package graph

import (
	"maps"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
)

// ledger is what is live by the events so far, by block.
type ledger map[int32]int64

func (l ledger) read(t require.TestingT, es []allocator.Event) {
	for _, e := range es {
		switch e.Kind {
		case allocator.Alloc:
			require.NotContains(t, l, e.Block)
			l[e.Block] = e.Bytes
		case allocator.Free:
			require.Contains(t, l, e.Block)
			delete(l, e.Block)
		}
	}
}

func (l ledger) sizes() []int64 { return slices.Sorted(maps.Values(l)) }

// layer is a linear layer, frozen or not.
func layer(width int64, frozen bool) *Module {
	m := NewModule("Linear")
	w := m.Param("weight", F32, width, width)
	w.Trained = !frozen
	m.Forward = func(f *Frame, in ...*Tensor) []*Tensor { return []*Tensor{f.Linear(in[0], w.T(), nil)} }
	return m
}

// block is a drawn stack of functions; its side is a norm whose graph no
// backward runs through.
func block(t *rapid.T, width int64) *Module {
	m := NewModule("Block")
	first := m.Child("first", layer(width, rapid.Bool().Draw(t, "frozen")))
	second := m.Child("second", layer(width, rapid.Bool().Draw(t, "frozen")))
	m.Recompute = Recompute(rapid.IntRange(0, 2).Draw(t, "recompute"))
	side := rapid.Bool().Draw(t, "side")
	ops := rapid.SliceOfN(rapid.IntRange(0, 3), 0, 4).Draw(t, "ops")
	m.Forward = func(f *Frame, in ...*Tensor) []*Tensor {
		x := f.Let("x", f.Call1(first, in[0]))
		if side {
			lost := f.Let("side", f.Silu(f.Call1(second, f.Detach(in[0]))))
			f.Let("norm", f.NormDim(f.Detach(lost), 1))
			f.Discard(lost)
		}
		for _, op := range ops {
			switch op {
			case 0:
				x = f.Let("x", f.Silu(x))
			case 1:
				x = f.Let("x", f.Mul(x, in[0]))
			case 2:
				x = f.Let("x", f.Add(f.Dropout(x, 0.1), in[0]))
			case 3:
				x = f.Let("x", f.Call1(second, x))
			}
		}
		return []*Tensor{f.Let("x", f.Add(x, in[0]))}
	}
	return m
}

// Checkpointing changes when tensors live, never what is left: after a step
// whose outputs are dropped, the parameters and their gradients.
func TestCheckpointingLeavesGradientsAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const width, rows = 64, 32
		v := spec.Versions{Torch: rapid.SampledFrom([]spec.Version{{2, 6}, {2, 15}}).Draw(t, "torch")}
		m := NewMachine(v, Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048})
		root := NewModule("Model")
		root.Child("in", layer(width, false))
		for i := range rapid.IntRange(1, 3).Draw(t, "blocks") {
			root.Child(strconv.Itoa(i), block(t, width))
		}
		m.ToDevice(root.Named(""))
		live := ledger{}
		live.read(t, m.Events())
		mixed := rapid.Bool().Draw(t, "mixed")
		for range 2 {
			m.Run(func(f *Frame) {
				var loss *Tensor
				forward := func() {
					x := f.Let("x", f.Input(F32, rows, width))
					for _, b := range root.Children {
						x = f.Let("x", f.Call1(b, x))
					}
					loss = f.Let("loss", f.CrossEntropy(x, f.Input(I64, rows)))
				}
				if mixed {
					f.Autocast(BF16, forward)
				} else {
					forward()
				}
				m.Backward(loss, nil)
			})
			live.read(t, m.Events())
		}
		var want []int64
		for _, p := range root.Parameters() {
			want = append(want, int64(p.Bytes()))
			if p.Grad != nil {
				want = append(want, int64(p.Bytes()))
			}
		}
		if v.Torch.Before(perGemmSince) { // the handles' workspaces stay
			want = append(want, m.workspaceBytes(), m.workspaceBytes())
		}
		slices.Sort(want)
		require.Equal(t, want, live.sizes())
	})
}

// A leaf made of an input keeps its gradient as long as the graph lives, which
// is as long as the loss: an hour after backward if the script wants.
func TestRequireGradLivesWithTheLoss(t *testing.T) {
	m := NewMachine(spec.Versions{Torch: spec.Version{2, 15}}, Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048})
	root := NewModule("Model")
	frozen := root.Child("frozen", layer(16, true))
	m.ToDevice(root.Named(""))
	live := ledger{}
	m.Run(func(f *Frame) {
		x := f.Input(F32, 8, 16)
		f.RequireGrad(x)
		loss := f.Let("loss", f.CrossEntropy(f.Call1(frozen, x), f.Input(I64, 8)))
		m.Backward(loss, nil)
		live.read(t, m.Events())
		require.Equal(t, []int64{4, 8 * 16 * 4, 8 * 16 * 4, 16 * 16 * 4}, live.sizes(), "loss, input, its gradient, weight")
	})
	live.read(t, m.Events())
	require.Equal(t, []int64{16 * 16 * 4}, live.sizes())
}
