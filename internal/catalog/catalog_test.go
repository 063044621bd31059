package catalog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// open returns the real catalogue.
func open(t testing.TB) *Catalog {
	t.Helper()
	c, err := Open()
	require.NoError(t, err)
	return c
}

func TestVersionOfTables(t *testing.T) {
	require.Equal(t, Version, open(t).Version())
}

func TestNearestVersion(t *testing.T) {
	c := open(t)
	for _, test := range []struct {
		name, library, version, known string
		exact                         bool
	}{
		{"none means the newest", "torch", "", "2.15.0", true},
		{"the very one", "torch", "2.15.0", "2.15.0", true},
		{"short form", "torch", "2.6", "2.6.0", true},
		{"local suffix", "torch", "2.6.0+cu124", "2.6.0", true},
		{"other name of the library", "PyTorch", "2.6", "2.6.0", true},
		{"between, nearer the older", "torch", "2.9.1", "2.6.0", false},
		{"between, nearer the newer", "torch", "2.12", "2.15.0", false},
		{"patch of a known minor", "transformers", "4.49.1", "4.49.0", false},
		{"pre-release is its release", "torch", "2.15.0rc1", "2.15.0", true},
		{"same major first", "transformers", "4.57.3", "4.49.0", false},
		{"older major", "transformers", "3.0", "4.49.0", false},
		{"newer than all", "torch", "3.1", "2.15.0", false},
		{"older than all", "torch", "1.13.1", "2.6.0", false},
		{"one version known", "peft", "0.10", "0.21.2", false},
		{"no version at all", "torch", "nightly", "2.15.0", false},
		{"unknown library", "jax", "0.4", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			known, exact := c.NearestVersion(test.library, test.version)
			require.Equal(t, test.known, known)
			require.Equal(t, test.exact, exact)
		})
	}
}

func TestVersionSets(t *testing.T) {
	c := open(t)
	sets := c.VersionSets()
	require.Equal(t, "5.24.0", sets[0].Libraries["transformers"])
	require.Equal(t, "0.45.3", sets[1].Libraries["bitsandbytes"])
	require.Equal(t, []string{"2.15.0", "2.6.0"}, c.KnownVersions("torch"))

	defaults := c.DefaultVersions()
	require.Equal(t, "2.15.0", defaults["torch"])
	require.Equal(t, "0.16.4", defaults["deepspeed"], "of a library the default set lacks, the newest of any set")

	sets[0].Libraries["torch"] = "changed"
	require.Equal(t, "2.15.0", c.VersionSets()[0].Libraries["torch"], "a caller's change must not reach the catalogue")
}
