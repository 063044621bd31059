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

// Whatever is true of a card, the fit finds it: also where the priors are off by
// twice their spread.
func TestRunsOutweighThePriors(t *testing.T) {
	c := newCard(rand.New(rand.NewPCG(4, 4)))
	c.truth = map[string]float64{calibrate.Context: 1600 * mib, calibrate.NCCL: 2, calibrate.ConvWorkspace: 0}
	before, after := calibrate.Prior(believed()), calibrate.New(c.measure(200), believed())
	for i, name := range []string{calibrate.Context, calibrate.NCCL, calibrate.ConvWorkspace} {
		k := after.Coefficients[i]
		require.Equal(t, name, k.Name)
		require.InDelta(t, c.truth[name], k.Posterior.Mean, 3*k.Posterior.SD, name)
		require.Less(t, k.Posterior.SD, before.Coefficients[i].Posterior.SD/2, name)
	}
	require.Len(t, after.Wild, 10, "every twentieth was spoilt")
}

func TestAnUnmeasuredGroupIsTheWidest(t *testing.T) {
	c := newCard(rand.New(rand.NewPCG(5, 5)))
	fit := calibrate.New(c.measure(60), believed())
	for _, g := range []string{"decoder", "convolutional", "sharded"} {
		require.LessOrEqual(t, fit.Error(g), fit.Error("something else"))
		require.GreaterOrEqual(t, fit.Error(g), 0.01)
	}
	kept := calibrate.Restore(fit.Coefficients, fit.Covariance, fit.Errors)
	next := c.measure(3)
	require.Equal(t, calibrate.Compare(fit, next), calibrate.Compare(kept, next), "a fit as it is kept predicts the same")
}

func TestObjection(t *testing.T) {
	observed := newCard(rand.New(rand.NewPCG(6, 6))).measure(16)
	good := calibrate.Validation{N: 16, Coverage: 0.9, MedianAbsError: 0.02}
	for _, test := range []struct {
		name   string
		edit   func(*calibrate.Validation)
		runs   int
		before float64
		want   string
	}{
		{"offered", func(*calibrate.Validation) {}, 16, 0.1, ""},
		{"too few", func(v *calibrate.Validation) { v.N = 11 }, 11, 0.1, "11 runs"},
		{"of too few kinds", func(v *calibrate.Validation) { v.N = 12 }, 8, 0.1, "2 kinds"},
		{"intervals that do not hold", func(v *calibrate.Validation) { v.Coverage = 0.7 }, 16, 0.1, "held 70 %"},
		{"worse than the priors", func(v *calibrate.Validation) { v.MedianAbsError = 0.2 }, 16, 0.1, "without it 10.0 %"},
		{"worse, and good all the same", func(v *calibrate.Validation) { v.MedianAbsError = 0.03 }, 16, 0.02, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := good
			test.edit(&v)
			got := calibrate.Objection(observed[:test.runs], v, calibrate.Validation{MedianAbsError: test.before})
			if test.want == "" {
				require.Empty(t, got)
				return
			}
			require.Contains(t, got, test.want)
		})
	}
}
