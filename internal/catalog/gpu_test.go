package catalog

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/fault"
	"memplan/internal/units"
)

func TestEveryGPUIsFoundByEverySpelling(t *testing.T) {
	c := open(t)
	require.Len(t, c.GPUs(), 65)
	for _, g := range c.GPUs() {
		for _, spelling := range append([]string{g.Key, g.Name}, g.Aliases...) {
			for _, typed := range []string{spelling, strings.ToLower(spelling), strings.ReplaceAll(spelling, "-", "_"), " " + spelling + " "} {
				found, err := c.GPU(typed)
				require.NoError(t, err, typed)
				require.Equal(t, g.Key, found.Key, typed)
			}
		}
	}
}

func TestGPUFiguresArePlausible(t *testing.T) {
	for _, g := range open(t).GPUs() {
		t.Run(g.Key, func(t *testing.T) {
			nominal := units.Bytes(g.NominalGB) * units.GB
			require.Greater(t, g.Usable, nominal*85/100)
			require.LessOrEqual(t, g.Usable, units.Bytes(g.NominalGB)*units.GiB)
			if g.NvidiaSMITotal > 0 {
				require.Less(t, g.Usable, g.NvidiaSMITotal+16*units.MiB, "printed totals are rounded to 0.01 GiB")
			}
			require.NotEmpty(t, g.UsableStatus)
			require.NotEmpty(t, g.UsableSource)
			require.NotEmpty(t, g.ComputeCapability)
			require.Positive(t, g.BandwidthGBs)
			require.Positive(t, g.DenseTFLOPS.FP32)
			require.Positive(t, g.Context.Mean)
			require.Positive(t, g.Context.SD)
			require.True(t, strings.HasPrefix(g.Context.Source, "prior"), g.Context.Source)
			require.Equal(t, g.Vendor == "amd", g.Warning != "")
		})
	}
}

func TestUsable(t *testing.T) {
	c := open(t)
	for _, test := range []struct {
		name, gpu, status string
		usable            units.Bytes
	}{
		{"smallest of the reports seen", "A100-SXM4-80GB", "seen", gib(79.15)},
		{"taken over from the same memory", "H800", "taken over from H100-SXM5-80GB: same memory", gib(79.1)},
		{"nvidia-smi less the most hidden on Hopper", "H20", "estimated", (97871 - 698) * units.MiB},
		{"smallest of older drivers' values less the most hidden at all", "B300", "estimated", (275040 - 870) * units.MiB},
		{"AMD, as seen", "MI300X", "seen", gib(191.98)},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, err := c.GPU(test.gpu)
			require.NoError(t, err)
			require.Equal(t, test.usable, g.Usable)
			require.Equal(t, test.status, g.UsableStatus)
		})
	}
}

func gib(v float64) units.Bytes { return units.Bytes(v * float64(units.GiB)) }

func TestUsableWithoutAnyReport(t *testing.T) {
	size, status, source := gpuRow{NominalGB: 48}.usable(nil)
	require.Equal(t, 48*units.GB, size)
	require.Equal(t, "estimated", status)
	require.Contains(t, source, "decimal gigabytes")
}

func TestUnknownGPU(t *testing.T) {
	c := open(t)
	for _, test := range []struct{ name, typed, nearest string }{
		{"a letter too many", "A100-SXM4-880GB", "A100-SXM4-80GB"},
		{"a wrong digit", "GeForce RTX 4190", "RTX-4090"},
		{"part of a name", "5880 ada", "RTX-5880-Ada"},
		{"a chip that comes in several sizes", "A100", "A100-SXM4-40GB"},
		{"nothing alike still names one", "Gaudi", ""},
		{"empty", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := c.GPU(test.typed)
			fields := fault.FieldsOf(err)
			require.Len(t, fields, 1)
			require.Equal(t, "target.gpu", fields[0].Path)
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			if test.nearest != "" {
				require.Equal(t, test.nearest, fields[0].Nearest)
			}
		})
	}
}

func TestContextPriors(t *testing.T) {
	c := open(t)
	for _, test := range []struct {
		name, capability string
		mean             units.Bytes
	}{
		{"Turing", "7.5", 325 * units.MiB},
		{"Ampere", "8.0", 425 * units.MiB},
		{"Ada", "8.9", 425 * units.MiB},
		{"Hopper", "9.0", 550 * units.MiB},
		{"Blackwell", "12.0", 550 * units.MiB},
	} {
		t.Run(test.name, func(t *testing.T) {
			prior, ok := c.ContextOf(test.capability)
			require.True(t, ok)
			require.Equal(t, test.mean, prior.Mean)
		})
	}
	_, ok := c.ContextOf("3.5")
	require.False(t, ok)
}

func TestMIG(t *testing.T) {
	c := open(t)
	for _, test := range []struct {
		name, gpu, profile string
		usable             units.Bytes
	}{
		{"Ampere, as the table has it", "A100-SXM4-40GB", "1g.5gb", 4864 * units.MiB},
		{"spelt as nvidia-smi does", "A30", "MIG 2g.12gb", 11672 * units.MiB},
		{"Hopper, whole card", "H100-SXM5-80GB", "7g.80gb", gib(79.1)},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, err := c.GPU(test.gpu)
			require.NoError(t, err)
			s, err := g.Slice(test.profile)
			require.NoError(t, err)
			require.InDelta(t, float64(test.usable), float64(s.Usable), 1)
		})
	}
	for _, g := range c.GPUs() {
		for _, s := range g.MIG {
			require.LessOrEqual(t, s.Usable, g.Usable, "%s %s", g.Key, s.Profile)
		}
	}
}

func TestUnknownMIGProfile(t *testing.T) {
	c := open(t)
	h100, err := c.GPU("H100")
	require.Error(t, err, "H100 alone is two cards")
	h100, err = c.GPU("H100 SXM")
	require.NoError(t, err)
	_, err = h100.Slice("1g.11gb")
	want := fault.Fields{{Path: "target.mig_profile", Got: "1g.11gb", Want: "one of 1g.10gb, 1g.20gb, 2g.20gb, 3g.40gb, 4g.40gb, 7g.80gb", Nearest: "1g.10gb"}}
	require.Empty(t, cmp.Diff(want, fault.FieldsOf(err)))

	t4, err := c.GPU("T4")
	require.NoError(t, err)
	_, err = t4.Slice("1g.5gb")
	require.Contains(t, fault.FieldsOf(err)[0].Want, "no profile")
}

func TestGPUsAreCopies(t *testing.T) {
	c := open(t)
	g, err := c.GPU("A100-80GB")
	require.NoError(t, err)
	g.Aliases[0], g.MIG[0].Usable = "changed", 0
	again, err := c.GPU("A100-80GB")
	require.NoError(t, err)
	require.NotEqual(t, "changed", again.Aliases[0])
	require.NotZero(t, again.MIG[0].Usable)
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		name, a, b string
		want       int
	}{
		{"equal", "h100", "h100", 0},
		{"replace", "h100", "h200", 1},
		{"insert", "h100", "h1000", 1},
		{"swap costs two", "4090", "4009", 2},
		{"empty", "", "h100", 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, distance(test.a, test.b))
			require.Equal(t, test.want, distance(test.b, test.a))
		})
	}
}

func TestDistanceIsAMetric(t *testing.T) {
	name := rapid.StringMatching(`[a-c0-2]{0,8}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := name.Draw(t, "a"), name.Draw(t, "b"), name.Draw(t, "c")
		require.Zero(t, distance(a, a))
		require.Equal(t, distance(a, b), distance(b, a))
		require.LessOrEqual(t, distance(a, c), distance(a, b)+distance(b, c))
	})
}

func FuzzNormalise(f *testing.F) {
	for _, seed := range []string{"A100-SXM4-80GB", "meta-llama/Llama-3.1-8B@main", "", "ÄÖ \x00", "1g.10gb"} {
		f.Add(seed)
	}
	c := open(f)
	f.Fuzz(func(t *testing.T, s string) {
		n := normalise(s)
		require.Equal(t, n, normalise(n), "normalising twice changes nothing")
		require.LessOrEqual(t, len(n), len(s))
		require.Equal(t, -1, strings.IndexFunc(n, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }))
		if g, err := c.GPU(s); err == nil {
			require.NotEmpty(t, g.Key)
		} else {
			require.Len(t, fault.FieldsOf(err), 1)
		}
		if m, ok := c.Model(s); ok {
			require.NotEmpty(t, m.ID)
		}
		c.Models(s, 3)
		c.NearestVersion("torch", s)
	})
}
