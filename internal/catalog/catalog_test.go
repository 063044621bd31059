package catalog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// open returns the real catalogue.
func open(t testing.TB) *Catalog {
	c, err := Open()
	require.NoError(t, err)
	return c
}

func TestOpen(t *testing.T) {
	c := open(t)
	require.NotEmpty(t, c.Version())
	require.Len(t, c.GPUs(), 65)
	require.GreaterOrEqual(t, c.ModelCount(), 20)
	for _, p := range []float64{1e6, 3e6, 1e7, 5e7, 1e8, 5e8, 7e9, 8e9, 1e9, 1.5e10, 2e10, 3e10, 7e10, 1.8e11, 1e12, 5e12} {
		m, why, err := c.OfSize(p)
		require.NoError(t, err, p)
		s, err := c.Scaled(p)
		require.NoError(t, err, p)
		t.Log(p, m.ID, why, s.Parameters, s.Source)
	}
}
