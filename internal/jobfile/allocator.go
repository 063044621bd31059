package jobfile

import (
	"fmt"
	"strings"

	"memplan/internal/estimator/spec"
)

const allocatorVariable = "PYTORCH_CUDA_ALLOC_CONF"

// allocatorSettings is PYTORCH_CUDA_ALLOC_CONF. Keys of
// pytorch/pytorch:c10/cuda/CUDAAllocatorConfig.cpp@2.6.
func allocatorSettings() Format {
	at := func(j *spec.Job) *spec.AllocatorSettings { return &j.Runtime.Allocator }
	const path = "runtime.allocator."
	return Format{
		Name: "alloc-conf", Title: "allocator settings", File: "environment", Kind: Environment, Source: "PyTorch 2.6",
		syntax: syntax{name: "export " + allocatorVariable + "=…", encode: encodeSettings, decode: decodeSettings},
		suits: func(j *spec.Job) bool {
			set := j.Runtime.Allocator
			if set.Backend == "native" { // the default
				set.Backend = ""
			}
			return set != spec.AllocatorSettings{}
		},
		rules: []rule{
			choose("backend", path+"backend", func(j *spec.Job) *string { return &at(j).Backend }, choice[string]{"cudaMallocAsync", "cudaMallocAsync"}, choice[string]{"native", "native"}),
			flag("expandable_segments", path+"expandable_segments", func(j *spec.Job) *bool { return &at(j).ExpandableSegments }),
			optional("max_split_size_mb", path+"max_split_size_mb", func(j *spec.Job) **float64 { return &at(j).MaxSplitSizeMB }),
			custom(
				func(s *Subject, d *document) {
					if v := at(&s.Job).RoundupPower2Divisions; v != nil {
						d.set("roundup_power2_divisions", v)
					}
				},
				func(in *source, j *spec.Job) {
					if v, ok := in.value("roundup_power2_divisions"); ok {
						if n, whole := v.(int); whole {
							v = float64(n)
						}
						at(j).RoundupPower2Divisions = v
					}
				}, path+"roundup_power2_divisions"),
			optional("garbage_collection_threshold", path+"garbage_collection_threshold", func(j *spec.Job) **float64 { return &at(j).GarbageCollectionThreshold }),
		},
	}
}

// optional ties a number that may be absent.
func optional(key, path string, at func(*spec.Job) **float64) rule {
	return custom(
		func(s *Subject, d *document) {
			if p := *at(&s.Job); p != nil {
				d.set(key, *p)
			}
		},
		func(in *source, j *spec.Job) {
			if x, ok := in.number(key); ok {
				*at(j) = &x
			}
		}, path)
}

func encodeSettings(d document) (string, error) {
	var all []string
	for _, e := range d.entries {
		v := fmt.Sprint(e.value)
		if on, ok := e.value.(bool); ok {
			v = map[bool]string{true: "True", false: "False"}[on]
		}
		all = append(all, e.key+":"+v)
	}
	if len(all) == 0 {
		return "", nil
	}
	return "export " + allocatorVariable + "=" + quoted(strings.Join(all, ",")) + "\n", nil
}

func decodeSettings(data []byte) (document, error) {
	var d document
	words, err := shellWords(string(data))
	if err != nil {
		return d, err
	}
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok || name != allocatorVariable && name != "PYTORCH_ALLOC_CONF" {
			continue
		}
		for _, part := range splitSettings(value) {
			k, v, _ := strings.Cut(part, ":")
			d.set(strings.TrimSpace(k), plain(strings.TrimSpace(v)))
		}
	}
	if len(d.entries) == 0 && len(words) > 0 {
		return d, fmt.Errorf("no %s in it", allocatorVariable)
	}
	return d, nil
}

// splitSettings splits at commas outside brackets.
func splitSettings(s string) []string {
	var all []string
	depth, start := 0, 0
	for i, c := range s {
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				all = append(all, s[start:i])
				start = i + 1
			}
		}
	}
	return append(all, s[start:])
}
