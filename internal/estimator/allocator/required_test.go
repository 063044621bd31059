package allocator

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"memplan/internal/units"
)

// smallest tries every capacity from the peak of the requests on.
func smallest(t require.TestingT, c Config, p Program, unlimitedRun Stats) units.Bytes {
	c.Capacity = units.Bytes(granules(int64(unlimitedRun.Requested.Peak)))
	for ; c.Capacity < unlimitedRun.Reserved.Peak; c.Capacity += granularity {
		ok, err := Completes(c, p)
		require.NoError(t, err)
		if ok {
			break
		}
	}
	return c.Capacity
}

func run(t require.TestingT, c Config, p Program) Stats {
	a := New(c)
	require.NoError(t, a.Run(p, nil))
	return a.Stats()
}

func TestRequiredOfRealJobs(t *testing.T) {
	for _, x := range []struct {
		name, file string
		config     Config
	}{
		{"gpt2", "gpt2", Config{}},
		{"gpt2 rounded", "gpt2_round", Config{RoundupPower2Divisions: UniformDivisions(8)}},
		{"llama", "llama_hf", Config{}},
		{"llama expandable", "llama_exp", Config{ExpandableSegments: true, DeviceTotal: 80 * units.GiB}},
		{"llama split", "llama_split", Config{MaxSplitSize: 32 * units.MiB}},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := readTrace(t, "testdata/"+x.file+".json.gz").Program
			unlimitedRun := run(t, x.config, p)
			exact := smallest(t, x.config, p, unlimitedRun)
			require.Less(t, exact, unlimitedRun.Reserved.Peak, "a job that needs no search proves nothing")
			got, err := Required(x.config, p)
			require.NoError(t, err)
			require.Equal(t, exact, got)
			got, err = New(x.config).RequiredAfter(x.config, p, unlimitedRun, 0.005)
			require.NoError(t, err)
			require.GreaterOrEqual(t, got, exact)
			require.LessOrEqual(t, float64(got), 1.005*float64(exact))
		})
	}
}

// churn makes a program of large and small blocks that come and go.
func churn(r *rand.Rand, n int) []Event {
	var events []Event
	var alive []int32
	rising := 0.5
	for i := range n {
		if i%30 == 0 {
			rising = 0.35 + 0.45*r.Float64()
		}
		if len(alive) == 0 || r.Float64() < rising {
			limit := []int64{1 << 20, 12 << 20, 40 << 20}[r.IntN(3)]
			events = append(events, Event{Kind: Alloc, Block: int32(i), Bytes: 1 + r.Int64N(limit)})
			alive = append(alive, int32(i))
			continue
		}
		k := r.IntN(len(alive))
		events = append(events, Event{Kind: Free, Block: alive[k]})
		alive[k] = alive[len(alive)-1]
		alive = alive[:len(alive)-1]
	}
	return events
}

// TestRequiredAgainstEveryCapacity states how good the answer is: on programs
// far wilder than a training step, never too small, and seldom too large.
func TestRequiredAgainstEveryCapacity(t *testing.T) {
	for _, x := range []struct {
		name   string
		within float64
		exact  int     // of 100, at least
		excess float64 // mean, relative, at most
	}{
		{"no replay", 1, 20, 0.17},
		{"within 5 percent", 0.05, 40, 0.02},
		{"as answers do", 0.005, 95, 0.0031},
		{"as Required does", 0, 96, 0.0031},
	} {
		t.Run(x.name, func(t *testing.T) {
			exact, excess := 0, 0.0
			for seed := range uint64(100) {
				p := Program{{Events: churn(rand.New(rand.NewPCG(seed, 1)), 150)}}
				unlimitedRun := run(t, Config{}, p)
				want := smallest(t, Config{}, p, unlimitedRun)
				got, err := New(Config{}).RequiredAfter(Config{}, p, unlimitedRun, x.within)
				require.NoError(t, err)
				require.GreaterOrEqual(t, got, want)
				if got == want {
					exact++
				}
				excess += float64(got-want) / float64(want) / 100
			}
			require.GreaterOrEqual(t, exact, x.exact)
			require.LessOrEqual(t, excess, x.excess)
		})
	}
}

func TestRequiredIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := configs().Draw(t, "config")
		c.Capacity, c.MemoryFractionSet = 0, false
		p := Program{{Events: steps(t, 60)}}
		got, err := Required(c, p)
		require.NoError(t, err)
		unlimitedRun := run(t, c, p)
		require.LessOrEqual(t, got, unlimitedRun.Reserved.Peak)
		live := c // a miss waits for the uses of parked blocks, which then need no room
		live.EventLag = 0
		require.GreaterOrEqual(t, got, run(t, live, p).Requested.Peak)
		if got == 0 {
			return // a program that asks for nothing
		}
		c.Capacity = got
		ok, err := Completes(c, p)
		require.NoError(t, err)
		require.True(t, ok, "it does not complete at %v", got)
	})
}

func TestRequiredReportsDefects(t *testing.T) {
	_, err := Required(Config{}, Program{{Events: []Event{{Kind: Free, Block: 3}}}})
	var defect *ProgramError
	require.ErrorAs(t, err, &defect)
}
