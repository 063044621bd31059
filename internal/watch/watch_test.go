package watch

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/fault"
	"memplan/internal/units"
)

// trained is a run of n steps that holds 10 GiB and leaks per step, with noise
// and a spike now and then.
func trained(n int, leak, noise units.Bytes, seed uint64) []Sample {
	draw := rand.New(rand.NewPCG(seed, 1))
	var out []Sample
	for i := range n {
		a := 10*units.GiB + units.Bytes(i)*leak + units.Bytes(float64(noise)*draw.NormFloat64())
		if i%17 == 16 {
			a += units.GiB
		}
		out = append(out, Sample{Step: float64(i + 1), Seconds: float64(i) * 2, Allocated: a, Reserved: 12*units.GiB + units.Bytes(i)*leak, Process: 12*units.GiB + 500*units.MiB + units.Bytes(i)*leak})
	}
	return out
}

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		name    string
		samples []Sample
		leaking bool
		of      string
		frag    float64
	}{
		{"steady", trained(100, 0, 20*units.MiB, 1), false, "allocated", 0.17},
		{"leaks", trained(100, 2*units.MiB, 20*units.MiB, 1), true, "allocated", 0.16},
		{"constant", trained(10, 0, 0, 1), false, "allocated", 0.17},
		{"leaks slowly for long", trained(3000, 40*units.KiB, 10*units.MiB, 1), true, "allocated", 0.16},
	} {
		t.Run(test.name, func(t *testing.T) {
			j, err := Judge(test.samples, 80*units.GiB)
			require.NoError(t, err)
			require.Equal(t, test.leaking, j.Leaking, "%+v", j.Growth)
			require.Equal(t, test.of, j.Growth.Of)
			require.InDelta(t, test.frag, j.Fragmentation.Share, 0.1)
			require.NotEmpty(t, j.Advice)
		})
	}
}

func TestProjection(t *testing.T) {
	s := trained(200, 4*units.MiB, 0, 3)
	j, err := Judge(s, 20*units.GiB)
	require.NoError(t, err)
	require.InDelta(t, 4*float64(units.MiB), j.Growth.Bytes, 0.05*float64(units.MiB))
	last := s[len(s)-1]
	room := 20*units.GiB - last.Process + last.Reserved - last.Allocated
	require.InDelta(t, float64(room/(4*units.MiB)), j.OutOfMemory.In, 10)
	require.Equal(t, "step", j.OutOfMemory.Per)
	require.LessOrEqual(t, j.OutOfMemory.Earliest, j.OutOfMemory.In)
	j, err = Judge(s, 0)
	require.NoError(t, err)
	require.Nil(t, j.OutOfMemory, "the capacity is not known")
}

// Of runs that do not leak, few are said to.
func TestFalseAlarms(t *testing.T) {
	alarms := 0
	for seed := range uint64(300) {
		j, err := Judge(trained(60, 0, 200*units.MiB, seed), 0)
		require.NoError(t, err)
		if j.Leaking {
			alarms++
		}
	}
	require.Less(t, alarms, 15, "5 % of 300")
}

func TestOrderOfSamples(t *testing.T) {
	bySeconds := []Sample{{Seconds: 1, Process: 1}, {Seconds: 2, Process: 1}}
	j, err := Judge(bySeconds, 0)
	require.NoError(t, err)
	require.Nil(t, j.Growth)
	require.Contains(t, j.Advice[0], "Too few samples")
	for _, wrong := range [][]Sample{nil, {{Step: 1}}, {{Step: 2}, {Step: 1}}, {{}, {}}} {
		_, err := Judge(wrong, 0)
		require.Equal(t, fault.Invalid, fault.KindOf(err))
		require.Equal(t, "samples", fault.FieldsOf(err)[0].Path)
	}
}
