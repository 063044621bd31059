package calibrate_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/calibrate"
)

const mib = 1 << 20

// believed are the priors of a card nobody measured.
func believed() []calibrate.Coefficient {
	return []calibrate.Coefficient{
		{Name: calibrate.Context, Unit: "bytes", Prior: calibrate.Belief{Mean: 800 * mib, SD: 400 * mib}},
		{Name: calibrate.NCCL, Unit: "ratio", Prior: calibrate.Belief{Mean: 1, SD: 0.5}},
		{Name: calibrate.ConvWorkspace, Unit: "ratio", Prior: calibrate.Belief{Mean: 1, SD: 0.5}},
	}
}

// card is a GPU whose coefficients are known.
type card struct {
	truth map[string]float64
	scale map[string]float64
	draw  *rand.Rand
}

// student draws from a Student t with four degrees of freedom.
func (c card) student() float64 {
	chi := 0.0
	for range 4 {
		z := c.draw.NormFloat64()
		chi += z * z
	}
	return c.draw.NormFloat64() / math.Sqrt(chi/4)
}

// measure is n runs of jobs of three groups; every twentieth is spoilt.
func (c card) measure(n int) []calibrate.Observation {
	groups := []string{"decoder", "convolutional", "sharded"}
	var out []calibrate.Observation
	for i := range n {
		g := groups[i%3]
		o := calibrate.Observation{
			Run: string(rune('a' + i)), Ladder: string(rune('a' + i/4)), Group: g,
			Simulated: math.Exp(c.draw.Float64()*3) * 1024 * mib, Terms: map[string]float64{calibrate.Context: 1},
		}
		switch g {
		case "convolutional":
			o.Terms[calibrate.ConvWorkspace] = o.Simulated * (0.05 + 0.2*c.draw.Float64())
		case "sharded":
			o.Terms[calibrate.NCCL] = 700 * mib
		}
		o.Measured = o.Simulated * (1 + c.truth[calibrate.EngineBias] + c.truth[g] + c.scale[g]*c.student())
		for name, x := range o.Terms {
			o.Measured += c.truth[name] * x
		}
		if i%20 == 19 {
			o.Measured *= 1.6
		}
		out = append(out, o)
	}
	return out
}

// newCard draws what is true of a card from what is believed.
func newCard(draw *rand.Rand) card {
	c := card{truth: map[string]float64{}, scale: map[string]float64{}, draw: draw}
	for _, b := range believed() {
		c.truth[b.Name] = b.Prior.Mean + b.Prior.SD*draw.NormFloat64()
	}
	c.truth[calibrate.EngineBias] = 0.02 * draw.NormFloat64()
	for _, g := range []string{"decoder", "convolutional", "sharded"} {
		c.truth[g] = 0.02 * draw.NormFloat64()
		c.scale[g] = 0.01 + 0.04*draw.Float64()
	}
	return c
}

func TestIntervalsCoverTheTruth(t *testing.T) {
	for _, seed := range []uint64{1, 2, 3} {
		const trials = 1000
		covered, predicted := map[string]int{}, 0
		draw := rand.New(rand.NewPCG(seed, 7))
		for range trials {
			c := newCard(draw)
			fit := calibrate.New(c.measure(40), believed())
			for _, k := range fit.Coefficients {
				truth, known := c.truth[k.Name]
				if known && math.Abs(k.Posterior.Mean-truth) <= 1.6449*k.Posterior.SD {
					covered[k.Name]++
				}
			}
			if next := c.measure(1); calibrate.Compare(fit, next)[0].Covers() {
				predicted++
			}
		}
		for _, name := range []string{calibrate.Context, calibrate.NCCL, calibrate.ConvWorkspace, calibrate.EngineBias} {
			require.InDelta(t, 900, covered[name], 60, "seed %d: %s", seed, name)
		}
		require.InDelta(t, 900, predicted, 60, "seed %d: a further run", seed)
		t.Log(seed, covered, predicted)
	}
}
