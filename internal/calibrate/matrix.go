package calibrate

import "math"

// matrix is square and symmetric.
type matrix [][]float64

func newMatrix(n int) matrix {
	m := make(matrix, n)
	for i := range m {
		m[i] = make([]float64, n)
	}
	return m
}

// addOuter adds w x xᵀ.
func (m matrix) addOuter(w float64, x []float64) {
	for i, a := range x {
		if a == 0 {
			continue
		}
		for j, b := range x {
			m[i][j] += w * a * b
		}
	}
}

// quadratic is xᵀ m x.
func (m matrix) quadratic(x []float64) float64 {
	sum := 0.0
	for i, a := range x {
		if a == 0 {
			continue
		}
		for j, b := range x {
			sum += a * b * m[i][j]
		}
	}
	return sum
}

// times is m x.
func (m matrix) times(x []float64) []float64 {
	out := make([]float64, len(x))
	for i, row := range m {
		out[i] = dot(row, x)
	}
	return out
}

// inverse of a positive definite matrix, by Cholesky's decomposition.
func (m matrix) inverse() matrix {
	n := len(m)
	l := newMatrix(n)
	for i := range n {
		for j := range i + 1 {
			sum := m[i][j] - dot(l[i][:j], l[j][:j])
			if i == j {
				l[i][i] = math.Sqrt(math.Max(sum, math.SmallestNonzeroFloat64))
			} else {
				l[i][j] = sum / l[j][j]
			}
		}
	}
	out := newMatrix(n)
	for c := range n {
		y := make([]float64, n)
		for i := range n {
			if i == c {
				y[i] = 1
			}
			y[i] = (y[i] - dot(l[i][:i], y[:i])) / l[i][i]
		}
		for i := n - 1; i >= 0; i-- {
			sum := y[i]
			for k := i + 1; k < n; k++ {
				sum -= l[k][i] * out[k][c]
			}
			out[i][c] = sum / l[i][i]
		}
	}
	return out
}

func dot(a, b []float64) float64 {
	sum := 0.0
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}
