package model

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"memplan/internal/estimator/allocator"
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

func TestScratch(t *testing.T) {
	var cfg map[string]any
	_ = json.Unmarshal([]byte(`{"model_type":"llama","hidden_size":1024,"intermediate_size":2816,"num_hidden_layers":2,"num_attention_heads":16,"num_key_value_heads":4,"vocab_size":32000}`), &cfg)
	m := graph.NewMachine(spec.Versions{Torch: spec.Version{2, 15}, Transformers: spec.Version{5, 24}}, graph.Device{Capability: spec.Version{8, 0}, Multiprocessors: 108, ThreadsPerSM: 2048})
	net, err := llamaFamily.New(*Read(cfg), Build{DType: graph.BF16, UseCache: true})
	if err != nil {
		t.Fatal(err)
	}
	m.ToDevice(net.Root)
	f := m.Open()
	for range 1 {
		in := f.Let("input_ids", f.Input(graph.I64, 2, 512))
		lab := f.Let("labels", f.Input(graph.I64, 2, 512))
		out := net.Forward(f, Batch{Tokens: in, Labels: lab})
		m.Mark(1)
		m.Backward(out.Loss, nil)
		m.Mark(2)
	}
	w, _ := os.Create("/tmp/t/ours.txt")
	defer w.Close()
	live := int64(0)
	size := map[int32]int64{}
	for _, e := range m.Events() {
		switch e.Kind {
		case allocator.Alloc:
			live += e.Bytes
			size[e.Block] = e.Bytes
			fmt.Fprintf(w, "+%d %d %d | %s\n", e.Block, e.Bytes, live, m.Describe(e.Block))
		case allocator.Free:
			live -= size[e.Block]
			fmt.Fprintf(w, "-%d %d\n", e.Block, size[e.Block])
		case allocator.Mark:
			fmt.Fprintf(w, "MARK %d\n", live)
		}
	}
}
