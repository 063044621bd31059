package allocator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/units"
)

func TestRound(t *testing.T) {
	divided := func(n int) Config { return Config{RoundupPower2Divisions: UniformDivisions(n)} }
	for _, x := range []struct {
		name           string
		config         Config
		bytes          units.Bytes
		block, segment units.Bytes
	}{
		{"least", Config{}, 1, 512, 2 << 20},
		{"exact", Config{}, 1024, 1024, 2 << 20},
		{"next", Config{}, 1025, 1536, 2 << 20},
		{"last of the small pool", Config{}, 1 << 20, 1 << 20, 2 << 20},
		{"first of the large pool", Config{}, 1<<20 + 1, 1<<20 + 512, 20 << 20},
		{"last shared segment", Config{}, 10<<20 - 512, 10<<20 - 512, 20 << 20},
		{"own segment", Config{}, 10<<20 - 1, 10 << 20, 10 << 20},
		{"own segment, rounded", Config{}, 21<<20 + 1, 21<<20 + 512, 22 << 20},
		{"larger shared segments", Config{LargeSegmentSize: 64 << 20}, 3 << 20, 3 << 20, 64 << 20},
		{"larger shared segments leave own ones alone", Config{LargeSegmentSize: 64 << 20}, 30 << 20, 30 << 20, 30 << 20},
		{"divisions too fine for the size", divided(4), 2048, 2048, 2 << 20},
		{"quarter steps", divided(4), 2049, 2560, 2 << 20},
		{"a power of two stays", divided(4), 4096, 4096, 2 << 20},
		{"a step stays", divided(4), 5120, 5120, 2 << 20},
		{"quarter steps of a MiB", divided(4), 1<<20 + 1, 1<<20 + 1<<18, 20 << 20},
		{"last step", divided(4), 1<<30 + 3<<28 + 1, 1 << 31, 1 << 31},
		{"one division is none", divided(1), 1025, 1536, 2 << 20},
		{"eighth steps can leave the small pool", divided(8), 1<<20 - 1, 1 << 20, 2 << 20},
	} {
		t.Run(x.name, func(t *testing.T) {
			block, segment := x.config.Round(x.bytes)
			require.Equal(t, [2]units.Bytes{x.block, x.segment}, [2]units.Bytes{block, segment})
		})
	}
}

func TestParseDivisions(t *testing.T) {
	for _, x := range []struct {
		name, text string
		want       Divisions
		fails      string
	}{
		{"single", "4", UniformDivisions(4), ""},
		{
			"torch's own test", "[64:8,128:2,256:4,512:2,1024:4,>:1]",
			Divisions{8, 8, 8, 8, 8, 8, 8, 2, 4, 2, 4, 1, 1, 1, 1, 1},
			"",
		},
		{
			"gaps are left alone", "[1:4, 4:2, 16:8, >:16]",
			Divisions{4, 0, 2, 0, 8, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16},
			"",
		},
		{"all", "[>:2]", UniformDivisions(2), ""},
		{"beyond the last interval", "[131072:2]", UniformDivisions(2), ""},
		{"off", "[64:0]", Divisions{}, ""},
		{"not a power", "6", Divisions{}, "not a power of two"},
		{"zero alone", "0", Divisions{}, "not a power of two"},
		{"key is no power", "[3:2]", Divisions{}, "not a power of two"},
		{"no value", "[64]", Divisions{}, "interval:divisions"},
		{"open list", "[64:2", Divisions{}, "does not end"},
	} {
		t.Run(x.name, func(t *testing.T) {
			got, err := ParseDivisions(x.text)
			if x.fails != "" {
				require.ErrorContains(t, err, x.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, x.want, got)
		})
	}
}
