package calibrate

import (
	"maps"
	"math"
	"slices"
)

// Freedom is the degrees of freedom of the engine's error: four is heavy in the
// tails and has a variance.
const Freedom = 4.0

// Halves of a 90 % interval: of a normal, and of a Student t with Freedom
// degrees of freedom, in units of its scale.
const (
	normal90  = 1.6449
	student90 = 2.1318
)

// The engine's error before anything is measured, relative to what it
// simulated.
const (
	leastScale  = 0.01 // never claimed to be smaller
	priorScale  = 0.03
	biasSD      = 0.02 // of all jobs, and again of each group
	scaleWeight = 4.0  // how many runs the scale of all groups counts for in each
)

// measuring is the spread of a counter that is sampled, bytes.
const measuring = 8 << 20

// wild is how far from its prediction, in scales, a run may lie and still be
// fitted.
const wild = 6.0

// Fit is a posterior.
type Fit struct {
	Coefficients []Coefficient
	Covariance   [][]float64 // of the coefficients, in their order
	Errors       []GroupError
	Used         []Observation
	Wild         []Observation // seen, and not fitted

	index map[string]int
	scale map[string]float64
}

// New fits observations by priors. Those of runs that lie wildly off are left
// out, and named.
func New(observed []Observation, priors []Coefficient) *Fit {
	f := fit(observed, priors)
	var kept, off []Observation
	for _, o := range observed {
		p := f.Predict(o)
		s := math.Hypot(f.scaleOf(o.Group)*o.Simulated, p.sd)
		if math.Abs(o.Measured-p.Mean) > wild*s {
			off = append(off, o)
		} else {
			kept = append(kept, o)
		}
	}
	if len(off) > 0 && len(kept) > 0 {
		f = fit(kept, priors)
		f.Wild = off
	}
	return f
}

// Prior is the fit to nothing.
func Prior(priors []Coefficient) *Fit { return fit(nil, priors) }

func fit(observed []Observation, priors []Coefficient) *Fit {
	f := &Fit{Used: observed, scale: map[string]float64{}}
	f.lay(observed, priors)
	rows := make([][]float64, len(observed))
	for i, o := range observed {
		rows[i] = f.row(o)
		f.scale[o.Group] = 2 * priorScale
	}
	before, mean := f.priorPrecision()
	var cov matrix
	for range 200 {
		precision := clone(before)
		right := make([]float64, len(mean))
		for i, p := range before {
			right[i] = p[i] * f.Coefficients[i].Prior.Mean
		}
		information := clone(before)
		for i, o := range observed {
			w := f.weight(o, rows[i], mean, cov)
			precision.addOuter(w, rows[i])
			// A t tells less than the normals it is made of.
			information.addOuter(w*(Freedom+1)/(Freedom+3), rows[i])
			for k, x := range rows[i] {
				right[k] += w * x * (o.Measured - o.Simulated)
			}
		}
		next := precision.inverse().times(right)
		cov = information.inverse()
		moved := f.rescale(observed, rows, next, cov)
		for k := range next {
			moved = math.Max(moved, math.Abs(next[k]-mean[k])/f.Coefficients[k].Prior.SD)
		}
		mean = next
		if moved < 1e-6 {
			break
		}
	}
	f.conclude(observed, mean, cov)
	return f
}

// lay makes the list of what is fitted: the priors, the bias of all jobs, and
// that of each group.
func (f *Fit) lay(observed []Observation, priors []Coefficient) {
	f.Coefficients = slices.Clone(priors)
	bias := func(name string) {
		f.Coefficients = append(f.Coefficients, Coefficient{Name: name, Unit: "ratio", Prior: Belief{SD: biasSD, Source: "the engine is held to the byte where it was compared"}})
	}
	bias(EngineBias)
	groups := map[string]bool{}
	for _, o := range observed {
		groups[o.Group] = true
	}
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		bias(biasOf(g))
	}
	f.index = map[string]int{}
	for i, c := range f.Coefficients {
		f.index[c.Name] = i
	}
}

// biasOf names the bias of a group.
func biasOf(group string) string { return EngineBias + " " + group }

// row is what each coefficient is multiplied with in an observation.
func (f *Fit) row(o Observation) []float64 {
	x := make([]float64, len(f.Coefficients))
	for name, term := range o.Terms {
		if i, ok := f.index[name]; ok {
			x[i] = term
		}
	}
	x[f.index[EngineBias]] = o.Simulated
	if i, ok := f.index[biasOf(o.Group)]; ok {
		x[i] = o.Simulated
	}
	return x
}

func (f *Fit) priorPrecision() (matrix, []float64) {
	p := newMatrix(len(f.Coefficients))
	mean := make([]float64, len(f.Coefficients))
	for i, c := range f.Coefficients {
		p[i][i] = 1 / (c.Prior.SD * c.Prior.SD)
		mean[i] = c.Prior.Mean
	}
	return p, mean
}

// weight is how much an observation tells: less, the further off it lies.
func (f *Fit) weight(o Observation, row, mean []float64, cov matrix) float64 {
	v := f.noise(o)
	off := o.Measured - o.Simulated - dot(row, mean)
	square := off * off
	if cov != nil {
		square += cov.quadratic(row)
	}
	return (Freedom + 1) / (Freedom + square/v) / v
}

// noise is the square of the scale of an observation's error.
func (f *Fit) noise(o Observation) float64 {
	s := f.scaleOf(o.Group) * o.Simulated
	return s*s + o.Rounding*o.Rounding/12 + measuring*measuring
}

// scaleOf is the scale of a group's error; of one that nobody measured the
// widest there is.
func (f *Fit) scaleOf(group string) float64 {
	if s, ok := f.scale[group]; ok {
		return s
	}
	widest := priorScale
	for _, s := range f.scale {
		widest = math.Max(widest, s)
	}
	return widest
}

// rescale finds the scales of the groups by what is left over, and says by how
// much they moved.
func (f *Fit) rescale(observed []Observation, rows [][]float64, mean []float64, cov matrix) float64 {
	type tally struct{ sum, n float64 }
	groups, all := map[string]tally{}, tally{priorScale * priorScale * scaleWeight, scaleWeight}
	for i, o := range observed {
		if o.Simulated <= 0 {
			continue
		}
		off := o.Measured - o.Simulated - dot(rows[i], mean)
		square := off*off + cov.quadratic(rows[i])
		w := (Freedom + 1) / (Freedom + square/f.noise(o))
		share := w * square / (o.Simulated * o.Simulated)
		t := groups[o.Group]
		groups[o.Group] = tally{t.sum + share, t.n + 1}
		all.sum, all.n = all.sum+share, all.n+1
	}
	moved := 0.0
	for g, t := range groups {
		s := math.Max(leastScale, math.Sqrt((t.sum+scaleWeight*all.sum/all.n)/(t.n+scaleWeight)))
		moved = math.Max(moved, math.Abs(s-f.scale[g])/s)
		f.scale[g] = s
	}
	return moved
}

// conclude writes the posterior down.
func (f *Fit) conclude(observed []Observation, mean []float64, cov matrix) {
	if cov == nil {
		before, _ := f.priorPrecision()
		cov = before.inverse()
	}
	f.Covariance = cov
	for i := range f.Coefficients {
		f.Coefficients[i].Posterior = Belief{Mean: mean[i], SD: math.Sqrt(cov[i][i])}
	}
	n := map[string]int{}
	for _, o := range observed {
		n[o.Group]++
	}
	f.Errors = []GroupError{}
	for _, g := range slices.Sorted(maps.Keys(n)) {
		f.Errors = append(f.Errors, GroupError{Group: g, Scale: f.scale[g], N: n[g]})
	}
}

func clone(m matrix) matrix {
	out := make(matrix, len(m))
	for i, row := range m {
		out[i] = slices.Clone(row)
	}
	return out
}

// Prediction is a size with its 90 % interval, bytes.
type Prediction struct {
	Mean, Low, High float64
	sd              float64 // of the mean
}

// Predict says what would be measured where o was.
func (f *Fit) Predict(o Observation) Prediction {
	row := f.row(o)
	p := Prediction{Mean: o.Simulated}
	for i, x := range row {
		p.Mean += x * f.Coefficients[i].Posterior.Mean
	}
	p.sd = math.Sqrt(math.Max(0, matrix(f.Covariance).quadratic(row)))
	half := math.Hypot(normal90*p.sd, student90*f.scaleOf(o.Group)*o.Simulated)
	p.Low, p.High = p.Mean-half, p.Mean+half
	return p
}

// Restore is a fit as it was kept: its posterior, without what it was made of.
func Restore(coefficients []Coefficient, covariance [][]float64, errors []GroupError) *Fit {
	f := &Fit{Coefficients: coefficients, Covariance: covariance, Errors: errors, index: map[string]int{}, scale: map[string]float64{}}
	for i, c := range coefficients {
		f.index[c.Name] = i
	}
	for _, e := range errors {
		f.scale[e.Group] = e.Scale
	}
	return f
}

// Error is the relative spread of the engine's error in a group, as that of the
// normal with the same 90 % interval.
func (f *Fit) Error(group string) float64 { return f.scaleOf(group) * student90 / normal90 }

// Sum is a weighted sum of coefficients by name, such as the two biases of a
// group. Names that are not of the fit count for nothing.
type Sum map[string]float64

// BiasIn is the sum of what the engine is known to be wrong by in a group.
func BiasIn(group string) Sum { return Sum{EngineBias: 1, biasOf(group): 1} }

// Mean is the expectation of a sum.
func (f *Fit) Mean(s Sum) float64 { return dot(f.weights(s), f.means()) }

// Between is the covariance of two sums.
func (f *Fit) Between(a, b Sum) float64 {
	return dot(f.weights(a), matrix(f.Covariance).times(f.weights(b)))
}

func (f *Fit) weights(s Sum) []float64 {
	x := make([]float64, len(f.Coefficients))
	for name, w := range s {
		if i, ok := f.index[name]; ok {
			x[i] = w
		}
	}
	return x
}

func (f *Fit) means() []float64 {
	x := make([]float64, len(f.Coefficients))
	for i, c := range f.Coefficients {
		x[i] = c.Posterior.Mean
	}
	return x
}
