package graph

import (
	"bufio"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/spec"
)

// The vectors are what _gemm_4bit_use_custom_cuda of bitsandbytes 0.50.2
// answers for cards and shapes drawn at random, a line each: multiprocessors,
// compute capability, type, rows, outputs, inputs, and whether it is true.
func TestFusedGEMM(t *testing.T) {
	file, err := os.Open("testdata/fused4bit.txt")
	require.NoError(t, err)
	defer file.Close()
	dtypes := map[string]DType{"f32": F32, "f16": F16, "bf16": BF16}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var sms, rows, out, in int64
		var major, minor, want int
		var dtype string
		_, err := fmt.Sscan(lines.Text(), &sms, &major, &minor, &dtype, &rows, &out, &in, &want)
		require.NoError(t, err)
		m := Machine{Device: Device{Capability: spec.Version{major, minor}, Multiprocessors: sms}}
		x := &Tensor{Shape: D(rows, in), DType: dtypes[dtype]}
		w := &Param{Shape: D(out, in), FourBit: &FourBit{BlockSize: 64}}
		require.Equal(t, want == 1, m.fusedGEMM(x, w), "%s", lines.Text())
	}
	require.NoError(t, lines.Err())
}

// NF4 and FP4 take half a byte a weight, and 4 bytes for 64 of them; nested, a
// byte for 64 and 4 bytes for 256 times 64.
func TestBytesOfFourBits(t *testing.T) {
	cases := []struct {
		name      string
		nested    bool
		block     int64
		storage   DType
		versions  spec.Version
		perWeight float64
		tables    int64 // of a fixed size
	}{
		{"one level", false, 64, U8, spec.Version{0, 50, 2}, 0.5625, 64},
		{"one level, stored as bf16", false, 64, BF16, spec.Version{0, 50, 2}, 0.5625, 64},
		{"one level, wider blocks", false, 128, U8, spec.Version{0, 45, 3}, 0.53125, 64},
		{"two levels", true, 64, U8, spec.Version{0, 50, 2}, 0.515869140625, 64 + 4 + 1024 + 1024},
		{"two levels, tables shared", true, 64, U8, spec.Version{0, 45, 3}, 0.515869140625, 64 + 4 + 1024},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := NewMachine(spec.Versions{BitsAndBytes: c.versions}, Device{Multiprocessors: 108, ThreadsPerSM: 2048})
			root := NewModule("Linear4bit")
			w := root.Param("weight", BF16, 4096, 4096)
			w.FourBit = &FourBit{BlockSize: c.block, Nested: c.nested, Storage: c.storage}
			m.ToDevice(root)
			live := liveBytes(m.Events())
			require.InDelta(t, c.perWeight, float64(live-c.tables)/float64(w.Numel()), 0)
			require.InDelta(t, c.perWeight, float64(w.Bytes())/float64(w.Numel()), 0)
		})
	}
}

// LLM.int8 takes a byte a weight and 4 bytes a row.
func TestBytesOfInt8(t *testing.T) {
	m := NewMachine(spec.Versions{}, Device{Multiprocessors: 108, ThreadsPerSM: 2048})
	root := NewModule("Linear8bitLt")
	w := root.Param("weight", BF16, 1024, 4096)
	w.Int8 = true
	m.ToDevice(root)
	require.Equal(t, int64(1024*4096+4*1024), liveBytes(m.Events()))
	require.EqualValues(t, 1024*4096+4*1024, w.Bytes())
}

// liveBytes is what events leave allocated.
func liveBytes(events []allocator.Event) int64 {
	var live int64
	sizes := map[int32]int64{}
	for _, e := range events {
		switch e.Kind {
		case allocator.Alloc:
			sizes[e.Block] = e.Bytes
			live += e.Bytes
		case allocator.Free:
			live -= sizes[e.Block]
		}
	}
	return live
}
