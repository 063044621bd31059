package graph

// Which kernel multiplies by a 4-bit weight (bitsandbytes/backends/cuda/ops.py
// @v0.50.2). Few rows go to a kernel that reads the packed weight; with more
// the weight is dequantised for cuBLAS. The limits were calibrated by its
// authors, card by card.

// product4bit is a product as the choice sees it: rows of x, outputs and inputs
// of the weight, tiles of 64 outputs, and the card's multiprocessors.
type product4bit struct {
	rows, out, in int64
	tiles, sms    int64
	dtype         DType
	major, minor  int
}

const (
	fusedAlways  = 4    // rows up to which the fused kernel always runs
	fusedMost    = 1536 // and up to which it may
	fusedLarge   = 512  // the same for weights of 4 Mi elements or more
	largeWeight  = 4 << 20
	fusedTile    = 64
	everyRow     = fusedMost
	noRow        = 0
	simtRows     = 7 // rows of the kernel without tensor cores
	simtRowsLeft = 5 // of those, where the product is a matter of tiling
)

// fusedGEMM reports whether the fused kernel runs.
func (m *Machine) fusedGEMM(x *Tensor, w *Param) bool {
	p := product4bit{
		out: w.Shape.D[0], in: w.Shape.D[1], sms: m.Device.Multiprocessors, dtype: x.DType,
		major: m.Device.Capability[0], minor: m.Device.Capability[1],
	}
	p.rows, p.tiles = x.Numel()/p.in, divUp(p.out, fusedTile)
	if p.rows > fusedMost || p.in%w.FourBit.BlockSize != 0 {
		return false
	}
	return p.rows <= max(fusedAlways, p.most())
}

// most is the largest number of rows for which the fused kernel runs.
func (p *product4bit) most() int64 {
	switch {
	case p.dtype == F32, p.major < 7, p.major == 7 && (p.minor < 5 || p.dtype != F16):
		return simtRows
	case p.major == 8 && p.minor == 7, p.major == 11:
		return noRow
	case p.major == 10:
		return p.blackwell()
	case p.out*p.in < largeWeight:
		return p.small()
	case p.rows > fusedLarge:
		return noRow
	case p.rows <= simtRows:
		return p.simt()
	case p.major == 7:
		return p.turing()
	case p.major == 8 && p.minor == 0:
		return p.ampere()
	case p.major == 8 && p.minor == 6:
		return p.pick(16, tier{p.waves(1, 1), 128}, tier{p.half(), 64})
	case p.major == 9:
		return p.hopper()
	case p.major == 12 && p.minor == 1 && p.waves(1, 1):
		return 256
	case p.major == 12 && p.minor == 0:
		return p.rtx50()
	}
	return p.ada()
}

// tier is a limit that holds where its condition does.
type tier struct {
	holds bool
	rows  int64
}

// pick is the first tier that holds, or the limit of the rest.
func (p *product4bit) pick(rest int64, tiers ...tier) int64 {
	for _, t := range tiers {
		if t.holds {
			return t.rows
		}
	}
	return rest
}

// either is a where the condition holds, else b.
func either(holds bool, a, b int64) int64 {
	if holds {
		return a
	}
	return b
}

// waves reports whether the tiles fill the card a/b times.
func (p *product4bit) waves(a, b int64) bool { return p.tiles*b >= p.sms*a }

// half reports whether they fill half of it, rounded down.
func (p *product4bit) half() bool { return p.tiles >= p.sms/2 }

func (p *product4bit) hbm() bool { return p.major == 9 || p.major == 8 && p.minor == 0 }

func (p *product4bit) blackwell() int64 {
	return p.pick(noRow, tier{p.waves(3, 1), 32}, tier{p.waves(1, 1), either(p.in >= p.out, noRow, 8)})
}

// small is for weights of less than 4 Mi elements.
func (p *product4bit) small() int64 {
	ampere, turing := p.major == 8 && p.minor == 0, p.major == 7
	if p.in*2 < p.out {
		return p.smallAndShort(ampere, turing)
	}
	quarter := p.tiles*4 <= p.sms
	switch {
	case ampere && quarter && p.in >= p.out:
		return either(p.tiles*8 <= p.sms, 32, 128)
	case ampere && quarter:
		return 384
	case turing && !p.waves(1, 1) && p.rows > 8:
		return 64
	case quarter:
		return either(p.in < p.out || p.hbm(), 32, 23)
	case p.tiles*2 <= p.sms:
		return 16
	}
	return noRow
}

// smallAndShort is for small weights with more than twice as many outputs as
// inputs.
func (p *product4bit) smallAndShort(ampere, turing bool) int64 {
	low := p.tiles*3 < p.sms
	switch {
	case ampere:
		return either(low, everyRow, 512)
	case p.hbm():
		return either(low, 512, 320)
	case turing:
		return p.pick(320, tier{p.waves(3, 1), 320}, tier{p.in >= 1024, 64}, tier{p.in >= 704, 96})
	}
	return p.pick(320, tier{p.waves(1, 1), 320}, tier{p.tiles*p.in > p.sms*320, 192})
}

// simt is for up to seven rows: the kernel without tensor cores wins but for a
// few shapes on cards with fast memory.
func (p *product4bit) simt() int64 {
	if !p.hbm() || p.tiles < either(p.major == 9, 36, 48) {
		return simtRows
	}
	threeQuarters, threeFifths := !p.waves(3, 4), !p.waves(3, 5)
	switch {
	case p.in > p.out && threeQuarters,
		p.in == p.out && p.major == 8 && threeFifths,
		p.in == p.out && p.major == 9 && threeQuarters && !threeFifths:
		return simtRowsLeft
	}
	return simtRows
}

func (p *product4bit) turing() int64 {
	return p.pick(32, tier{p.waves(3, 1), either(p.in < p.out, 128, 64)}, tier{p.half(), 64})
}

func (p *product4bit) ampere() int64 {
	low := p.tiles*2 < p.sms
	return p.pick(16,
		tier{p.waves(3, 1), 128},
		tier{p.waves(1, 1), either(p.in < p.out, 64, 32)},
		tier{p.in >= 3*p.out && p.tiles*4 > p.sms, noRow},
		tier{p.in == p.out && p.tiles >= 48 && !p.waves(3, 5), noRow},
		tier{low && p.in <= p.out, 128},
		tier{low && p.waves(1, 3), noRow},
		tier{p.half() && p.in < p.out, 128})
}

func (p *product4bit) hopper() int64 {
	return p.pick(noRow,
		tier{p.waves(3, 1), 64},
		tier{p.waves(2, 1), 48},
		tier{p.waves(1, 1), 32},
		tier{p.half(), either(p.in >= p.out && !p.waves(3, 4), noRow, 16)})
}

func (p *product4bit) rtx50() int64 {
	return p.pick(8,
		tier{p.waves(3, 1), 256},
		tier{p.waves(2, 1), 128},
		tier{p.waves(4, 5), either(p.in >= p.out, 96, 64)},
		tier{p.half(), either(p.in*2 >= p.out && p.tiles >= 128, 64, 8)},
		tier{p.in > 2*p.out && p.tiles > 64, 16})
}

// ada is for compute capability 8.9 and for cards nobody calibrated.
func (p *product4bit) ada() int64 {
	tall := p.in > 2*p.out
	return p.pick(either(tall || p.tiles < 48, 16, 8),
		tier{p.waves(3, 1), 256},
		tier{p.waves(2, 1), 128},
		tier{p.waves(4, 5) && (tall || p.tiles >= 200), 128},
		tier{p.waves(4, 5) && p.in >= p.out, either(p.sms >= 60, 128, 32)},
		tier{p.waves(4, 5), 64},
		tier{p.half() && tall, 64},
		tier{p.half(), either(p.tiles >= 64, 8, 32)},
		tier{p.in > p.out && p.tiles <= 48, either(p.in >= 3*p.out, 12, 10)})
}
