package graph

import "memplan/internal/estimator/spec"

type attentionBackend uint8

const (
	mathAttention attentionBackend = iota
	flashAttention
	efficientAttention
	cudnnAttention
)

var attentionBackends = map[string]attentionBackend{"math": mathAttention, "flash": flashAttention, "efficient": efficientAttention, "cudnn": cudnnAttention}

// cudnnFirstSince is when cuDNN came first in the order on Hopper and data
// centre Blackwell; its release for CUDA 13 has the fix it waits for.
var cudnnFirstSince = spec.Version{2, 15}

// groupedEfficientSince is when the memory-efficient kernel began to take
// grouped keys and values.
var groupedEfficientSince = spec.Version{2, 15}

// chooseAttention is select_sdp_backend of
// aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: the first of an order
// that accepts the arguments.
func (m *Machine) chooseAttention(q, k, v, mask *Tensor, a Attention) attentionBackend {
	if a.Backend != "" {
		return attentionBackends[a.Backend]
	}
	order := []attentionBackend{flashAttention, efficientAttention}
	if major := m.Device.Capability[0]; m.Versions.Torch.AtLeast(cudnnFirstSince) && (major == 9 || major == 10) {
		order = []attentionBackend{cudnnAttention, flashAttention, efficientAttention}
	}
	for _, b := range order {
		if m.accepts(b, q, k, v, mask, a.Dropout) {
			return b
		}
	}
	return mathAttention
}

// accepts reports whether a fused kernel takes the arguments.
func (m *Machine) accepts(b attentionBackend, q, k, v, mask *Tensor, dropout float64) bool {
	width, major := q.Shape.D[3], m.Device.Capability[0]
	half := q.DType != F32
	same := k.Shape.D[3] == width && v.Shape.D[3] == width
	switch b {
	case flashAttention:
		return half && mask == nil && same && width <= 256 && major >= 8 && !m.wideOnSmallCard(q, dropout)
	case cudnnAttention:
		return half && same && (width <= 128 || width == 256) && width%8 == 0 && q.Shape.D[2] > 1 && dropout == 0
	}
	grouped := k.Shape.D[1] != q.Shape.D[1]
	if grouped && m.Versions.Torch.Before(groupedEfficientSince) || q.DType == BF16 && major < 8 {
		return false
	}
	return k.Shape.D[3] == width && width%m.gemmAlignment(half) == 0 && v.Shape.D[3]%m.gemmAlignment(half) == 0
}

// wideOnSmallCard: flash's backward does not fit the shared memory of 8.6, 8.9
// and 12 between 192 and 224 columns, and above only without dropout
// (check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120).
func (m *Machine) wideOnSmallCard(q *Tensor, dropout float64) bool {
	c, width := m.Device.Capability, q.Shape.D[3]
	small := c[0] == 8 && c[1] >= 6 || c[0] == 12
	return small && q.NeedsGrad && (width > 192 && width <= 224 || width > 224 && dropout > 0)
}

// gemmAlignment is minimum_gemm_alignment, in elements.
func (m *Machine) gemmAlignment(half bool) int64 {
	switch major := m.Device.Capability[0]; {
	case half && major >= 7:
		return 8
	case major >= 8:
		return 4
	}
	return 1
}
