package throughput

import (
	"strings"

	"memplan/internal/catalog"
	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
)

// Rates are how fast a card computes and is fed: data-sheet peaks, of which
// kernels reach a share.
type Rates struct {
	FP32, TF32, FP16, BF16, FP8 float64 // dense FLOP a second, accumulated in fp32
	Bandwidth                   float64 // bytes a second of its memory
	Multiprocessors             float64
	Reach                       float64 // share of the peak that large products reach
	Attention                   float64 // share of it that flash attention reaches
	Link                        float64 // bytes a second between cards of a node, each way
	Network                     float64 // bytes a second to other nodes, for each card
	Host                        float64 // bytes a second to the host's memory
	Known                       bool    // the catalogue has the card's rates
	Source                      string
}

// link is how the cards of a node are connected: bytes a second that a rank
// sends in a collective, about 0.8 of the wires' nominal rate in one direction
// (NVIDIA's product pages: NVLink 2, 3, 4 and 5; PCIe 3, 4 and 5 with 16 lanes).
// Cards for workstations have no NVLink and copy through the host.
type link struct {
	key             string // beginning of the catalogue key
	within, network float64
	host            float64
}

const gb = 1e9

// links lists them by the beginning of the card's key, the first match counts.
func links() []link {
	return []link{
		{"B200", 720 * gb, 40 * gb, 50 * gb},
		{"GB200", 720 * gb, 40 * gb, 200 * gb},
		{"B300", 720 * gb, 80 * gb, 50 * gb},
		{"H100-PCIE", 25 * gb, 20 * gb, 50 * gb},
		{"H100-NVL", 240 * gb, 20 * gb, 50 * gb},
		{"H100", 360 * gb, 40 * gb, 50 * gb},
		{"H200", 360 * gb, 40 * gb, 50 * gb},
		{"GH200", 360 * gb, 20 * gb, 350 * gb},
		{"H20", 360 * gb, 40 * gb, 50 * gb},
		{"A100-SXM", 240 * gb, 20 * gb, 25 * gb},
		{"A100", 25 * gb, 10 * gb, 25 * gb},
		{"V100-SXM", 120 * gb, 10 * gb, 12 * gb},
		{"P100-SXM", 60 * gb, 10 * gb, 12 * gb},
		{"MI3", 300 * gb, 40 * gb, 50 * gb},
		{"MI2", 150 * gb, 20 * gb, 25 * gb},
		{"RTX", 8 * gb, 3 * gb, 20 * gb},
	}
}

// plain is a card on PCIe 4.
var plain = link{within: 12 * gb, network: 3 * gb, host: 20 * gb}

// RatesOf are the rates of a card of the catalogue on a device that may be a
// slice of it.
func RatesOf(g catalog.GPU, d spec.Device) Rates {
	const tera = 1e12
	r := Rates{
		FP32: g.DenseTFLOPS.FP32 * tera, TF32: g.DenseTFLOPS.TF32 * tera, FP16: g.DenseTFLOPS.FP16 * tera,
		BF16: g.DenseTFLOPS.BF16 * tera, FP8: g.DenseTFLOPS.FP8 * tera, Bandwidth: g.BandwidthGBs * gb,
		Multiprocessors: float64(estimator.Multiprocessors(d)), Known: g.Key != "", Source: g.PerfSource,
	}
	r.fillIn()
	l := plain
	for _, x := range links() {
		if strings.HasPrefix(g.Key, x.key) {
			l = x
			break
		}
	}
	r.Link, r.Network, r.Host = l.within, l.network, l.host
	r.Reach, r.Attention = 0.80, 0.55
	if major := d.ComputeCapability[0]; major >= 9 && major != 12 {
		r.Reach, r.Attention = 0.68, 0.36 // fed by TMA; flash attention 2 does not use it
	} else if major == 7 {
		r.Reach, r.Attention = 0.70, 0.35
	}
	return r
}

// fillIn takes what is unknown from what is known, and an A100's rates for a
// card of which nothing is: only ratios are of use then.
func (r *Rates) fillIn() {
	or := func(x *float64, other float64) {
		if *x == 0 {
			*x = other
		}
	}
	or(&r.FP32, 19.5e12)
	or(&r.FP16, r.FP32*2)
	or(&r.TF32, r.FP32)
	or(&r.BF16, r.FP32) // emulated
	or(&r.FP8, max(r.FP16, r.BF16))
	or(&r.Bandwidth, 1555*gb)
}
