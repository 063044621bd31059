package jobfile

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"memplan/internal/estimator/spec"
	"memplan/internal/units"
)

// Requests of schedulers: which card, how many, and how much memory of each.

// slurm is the head of a batch script. Options of sbatch, Slurm 24.
func slurm() Format {
	return Format{
		Name: "slurm", Title: "Slurm", File: "job.sbatch", Kind: Scheduler, Source: "Slurm 24 sbatch",
		syntax: syntax{name: "a batch script with #SBATCH lines", encode: encodeSbatch, decode: decodeSbatch},
		rules: []rule{custom(
			func(s *Subject, d *document) {
				n, node := perNode(s.Job)
				if nodes := (n + node - 1) / node; nodes > 1 {
					d.set("nodes", nodes)
				}
				d.set("gres", "gpu:"+gresType(s.Job.Target.GPU)+strconv.Itoa(node))
				d.set("ntasks-per-node", node)
				if s.Host > 0 {
					d.set("mem", fmt.Sprintf("%dG", gib(s.Host)))
				}
			},
			func(in *source, j *spec.Job) {
				nodes, several := in.whole("nodes")
				in.value("ntasks-per-node")
				in.value("mem")
				in.value("constraint")
				key := "gres"
				w, ok := in.word(key)
				if !ok {
					key = "gpus-per-node"
					w, ok = in.word(key)
				}
				if !ok {
					return
				}
				kind, n, good := readGres(strings.TrimPrefix(w, "gpu:"))
				if !good {
					in.refuse(key, w, "gpu:TYPE:COUNT")
					return
				}
				j.Target.GPU = kind
				if several && nodes > 1 {
					j.Parallelism.GPUsPerNode = n
					n *= nodes
				}
				j.Target.Count = n
			}, "target.gpu", "target.count", "parallelism.gpus_per_node")},
	}
}

// perNode is the number of GPUs in all and on each node.
func perNode(j spec.Job) (all, node int) {
	all, node = ranks(j), j.Parallelism.GPUsPerNode
	if node == 0 || all < node {
		node = all
	}
	return all, node
}

// gresType is a catalogue key as the type of a gres. Sites choose these names
// themselves; a key's own letters are what most of them use.
func gresType(key string) string {
	if key == "" {
		return ""
	}
	return strings.ToLower(key) + ":"
}

func readGres(s string) (kind string, n int, ok bool) {
	kind, count, typed := strings.Cut(s, ":")
	if !typed {
		kind, count = "", s
	}
	n, err := strconv.Atoi(count)
	return cardOfKey(kind), n, err == nil && n > 0
}

func gib(b units.Bytes) int { return int(math.Ceil(float64(b) / float64(units.GiB))) }

func encodeSbatch(d document) (string, error) {
	var out strings.Builder
	out.WriteString("#!/bin/bash\n")
	for _, e := range d.entries {
		fmt.Fprintf(&out, "#SBATCH --%s=%v\n", e.key, e.value)
	}
	return out.String(), nil
}

func decodeSbatch(data []byte) (document, error) {
	var d document
	if len(data) > limit {
		return d, errTooLarge
	}
	for line := range strings.Lines(string(data)) {
		option, ok := strings.CutPrefix(strings.TrimSpace(line), "#SBATCH ")
		if !ok {
			continue
		}
		words, err := shellWords(option)
		if err != nil || len(words) == 0 {
			continue
		}
		key, value, joined := strings.Cut(strings.TrimLeft(words[0], "-"), "=")
		if !joined && len(words) > 1 {
			value = words[1]
		}
		d.set(key, plain(value))
	}
	if len(d.entries) == 0 {
		return d, fmt.Errorf("no #SBATCH line in it")
	}
	return d, nil
}

// kubernetes is a pod with the resources of its container. Resource names of
// NVIDIA/k8s-device-plugin, of NVIDIA/gpu-feature-discovery for the product,
// and of Project-HAMi/HAMi for the memory of a shared card.
func kubernetes() Format {
	const limits = `spec.containers.0.resources.limits.`
	const count, memory, product = limits + `nvidia\.com/gpu`, limits + `nvidia\.com/gpumem`, `spec.nodeSelector.nvidia\.com/gpu\.product`
	return Format{
		Name: "kubernetes", Title: "Kubernetes", File: "pod.yaml", Kind: Scheduler, Source: "NVIDIA device plugin 0.17, HAMi 2.5",
		syntax: yamlSyntax(),
		fixed: func(*Subject) document {
			return lines(entry{"apiVersion", "v1"}, entry{"kind", "Pod"}, entry{"spec.containers.0.name", "train"})
		},
		rules: []rule{
			custom(func(*Subject, *document) {}, func(in *source, _ *spec.Job) {
				for _, k := range []string{"apiVersion", "kind", "spec.containers.0.name"} {
					in.value(k)
				}
			}),
			custom(
				func(s *Subject, d *document) {
					_, node := perNode(s.Job)
					d.set(count, node)
					if s.Need > 0 && s.Job.Target.Sharing == "mps" {
						d.set(memory, int(math.Ceil(float64(s.Need)/float64(units.MiB))))
					}
					if s.Host > 0 {
						d.set(limits+"memory", fmt.Sprintf("%dGi", gib(s.Host)))
					}
					if label := productLabel(s.Job.Target.GPU); label != "" {
						d.set(product, label)
					}
				},
				func(in *source, j *spec.Job) {
					if n, ok := in.whole(count); ok {
						j.Target.Count = n
					}
					in.value(memory)
					in.value(limits + "memory")
					if label, ok := in.word(product); ok {
						j.Target.GPU = cardOfLabel(label)
					}
				}, "target.gpu", "target.count"),
		},
	}
}

// skypilot is a task of SkyPilot. Keys of
// skypilot-org/skypilot:sky/utils/schemas.py@0.9.
func skypilot() Format {
	const key = "resources.accelerators"
	return Format{
		suits: func(j *spec.Job) bool { return accelerator(j.Target.GPU) != "" },
		Name:  "skypilot", Title: "SkyPilot", File: "task.yaml", Kind: Scheduler, Source: "SkyPilot 0.9",
		syntax: yamlSyntax(),
		rules: []rule{custom(
			func(s *Subject, d *document) {
				n, node := perNode(s.Job)
				name := accelerator(s.Job.Target.GPU)
				if name == "" {
					return
				}
				d.set(key, fmt.Sprintf("%s:%d", name, node))
				if s.Host > 0 {
					d.set("resources.memory", fmt.Sprintf("%d+", gib(s.Host)))
				}
				if nodes := (n + node - 1) / node; nodes > 1 {
					d.set("num_nodes", nodes)
				}
			},
			func(in *source, j *spec.Job) {
				in.value("resources.memory")
				nodes, several := in.whole("num_nodes")
				w, ok := in.word(key)
				if !ok {
					return
				}
				name, count, counted := strings.Cut(w, ":")
				n := 1
				if counted {
					var err error
					if n, err = strconv.Atoi(count); err != nil {
						in.refuse(key, w, "NAME:COUNT")
						return
					}
				}
				j.Target.GPU = cardOfAccelerator(name)
				if several && nodes > 1 {
					j.Parallelism.GPUsPerNode = n
					n *= nodes
				}
				j.Target.Count = n
			}, "target.gpu", "target.count", "parallelism.gpus_per_node")},
	}
}
