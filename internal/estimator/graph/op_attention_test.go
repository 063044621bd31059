package graph

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/spec"
)

var (
	torchToday = spec.Version{2, 15}
	torchOld   = spec.Version{2, 6}
	volta      = Device{Capability: spec.Version{7, 0}, Multiprocessors: 80, ThreadsPerSM: 2048}
	ampere     = Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048}
	ada        = Device{Capability: spec.Version{8, 9}, Multiprocessors: 128, ThreadsPerSM: 1536}
	hopper     = Device{Capability: spec.Version{9, 0}, Multiprocessors: 132, ThreadsPerSM: 2048}
)

func machine(torch spec.Version, d Device) *Machine {
	return NewMachine(spec.Versions{Torch: torch}, d)
}

func TestAttentionBackend(t *testing.T) {
	for _, c := range []struct {
		name           string
		torch          spec.Version
		device         Device
		dtype          DType
		width, kvHeads int64
		mask           bool
		dropout        float64
		want           attentionBackend
	}{
		{"half precision", torchToday, ampere, BF16, 64, 4, false, 0, flashAttention},
		{"fp32", torchToday, ampere, F32, 64, 4, false, 0, efficientAttention},
		{"a mask", torchToday, ampere, BF16, 64, 4, true, 0, efficientAttention},
		{"a width that fills no vector, masked", torchToday, ampere, BF16, 20, 4, true, 0, mathAttention},
		{"grouped fp32", torchToday, ampere, F32, 64, 2, false, 0, efficientAttention},
		{"grouped fp32 before the kernel took groups", torchOld, ampere, F32, 64, 2, false, 0, mathAttention},
		{"Volta has no flash", torchOld, volta, F16, 64, 4, false, 0, efficientAttention},
		{"Volta has no bf16", torchOld, volta, BF16, 64, 4, false, 0, mathAttention},
		{"Hopper prefers cuDNN", torchToday, hopper, BF16, 128, 2, false, 0, cudnnAttention},
		{"cuDNN takes 256 columns", torchToday, hopper, BF16, 256, 2, false, 0, cudnnAttention},
		{"but not 192", torchToday, hopper, BF16, 192, 2, false, 0, flashAttention},
		{"nor dropout", torchToday, hopper, BF16, 64, 4, false, 0.1, flashAttention},
		{"Hopper before", torchOld, hopper, BF16, 64, 4, false, 0, flashAttention},
		{"Ada at 256 columns", torchToday, ada, BF16, 256, 4, false, 0, flashAttention},
		{"Ada at 256 columns with dropout", torchToday, ada, BF16, 256, 4, false, 0.1, efficientAttention},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine(c.torch, c.device)
			q, k := m.alloc(D(2, 4, 100, c.width), c.dtype), m.alloc(D(2, c.kvHeads, 100, c.width), c.dtype)
			q.NeedsGrad = true
			var mask *Tensor
			if c.mask {
				mask = m.alloc(D(2, 1, 100, 100), Bool)
			}
			require.Equal(t, c.want, m.chooseAttention(q, k, k, mask, Attention{Dropout: c.dropout}))
		})
	}
}

// The sizes are those of real PyTorch on a no-op CUDA driver, 2 sequences of
// 300 tokens in 4 heads.
func TestEfficientWorkspace(t *testing.T) {
	for _, c := range []struct {
		name    string
		device  Device
		width   int64
		dtype   DType
		dropout bool
		want    int64
	}{
		{"Ampere, 256 columns", ampere, 256, BF16, false, 8390144},
		{"Ada, 32 columns", ada, 32, BF16, false, 656000},
		{"Ada, 80 columns", ada, 80, BF16, false, 1573632},
		{"Ada, 256 columns", ada, 256, BF16, true, 8390144},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := machine(torchToday, c.device)
			q := m.alloc(D(2, 4, 300, c.width), c.dtype)
			require.Equal(t, c.want, m.efficientWorkspace(q, q, q, c.dropout))
		})
	}
}

func TestFlashSplits(t *testing.T) {
	for _, c := range []struct {
		name                   string
		work, slots, keyBlocks int64
		want                   int64
	}{
		{"queries fill the card", 400, 216, 8, 1},
		{"one block of keys", 8, 216, 1, 1},
		{"1025 keys on an RTX 4090, 12 heads", 204, 256, 5, 5},
		{"700 keys on an A100, 4 heads", 44, 216, 3, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, splitsOf(c.work, c.slots, c.keyBlocks))
		})
	}
}
