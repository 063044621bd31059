package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"memplan/internal/fault"
	"memplan/internal/units"
)

// GPU is one card of the table.
type GPU struct {
	Key               string      `json:"key"`    // the spelling of target.gpu
	Name              string      `json:"name"`   // as the vendor sells it
	Vendor            string      `json:"vendor"` // nvidia | amd
	Aliases           []string    `json:"aliases"`
	Arch              string      `json:"arch"`               // Ampere, Hopper, CDNA3 …
	ComputeCapability string      `json:"compute_capability"` // "8.0"; of AMD cards the gfx name
	NominalGB         int         `json:"nominal_gb"`         // what the box says
	NvidiaSMITotal    units.Bytes `json:"nvidia_smi_total_bytes,omitempty"`
	Usable            units.Bytes `json:"usable_bytes"` // what the framework sees as the card's total
	UsableStatus      string      `json:"usable_status"`
	UsableSource      string      `json:"usable_source"` // the sentence for UsableStatus
	ECC               string      `json:"ecc"`
	BandwidthGBs      float64     `json:"bandwidth_gb_s"`
	DenseTFLOPS       TFLOPS      `json:"dense_tflops"`
	PerfSource        string      `json:"perf_source"`
	Context           Context     `json:"context"`
	MIG               []Slice     `json:"mig,omitempty"`
	Note              string      `json:"note,omitempty"`
	Warning           string      `json:"warning,omitempty"` // to be shown with every estimate for this card
}

// TFLOPS is the dense matrix rate by input type, accumulating in fp32. Zero is
// unknown, or a type the card has no units for.
type TFLOPS struct {
	FP32 float64 `json:"fp32,omitempty"`
	TF32 float64 `json:"tf32,omitempty"`
	FP16 float64 `json:"fp16_fp32acc,omitempty"`
	BF16 float64 `json:"bf16_fp32acc,omitempty"`
	FP8  float64 `json:"fp8_fp32acc,omitempty"`
}

// Context is the prior of what a process holds on a card outside the caching
// allocator: mean and standard deviation. It is nobody's measurement of that
// card; calibration replaces it.
type Context struct {
	Mean        units.Bytes `json:"mean_bytes"` // context with lazily loaded modules
	SD          units.Bytes `json:"sd_bytes"`
	KernelsMean units.Bytes `json:"kernels_mean_bytes"` // more, once many kernels are loaded
	KernelsSD   units.Bytes `json:"kernels_sd_bytes"`
	Source      string      `json:"source"`
}

const amdWarning = "AMD card: the allocator's rules are the same, but context, workspaces and kernel choice were not measured; the interval is wide"

// gpuRow is a row of gpus.json.
type gpuRow struct {
	Vendor            string    `json:"vendor"`
	Name              string    `json:"name"`
	Key               string    `json:"key"`
	Aliases           []string  `json:"aliases"`
	Arch              string    `json:"arch"`
	ComputeCapability string    `json:"compute_capability"`
	NominalGB         int       `json:"nominal_gb"`
	SMITotal          int64     `json:"nvidia_smi_total_mib"`
	SMIOther          []int64   `json:"nvidia_smi_other_reported_mib"`
	CUDATotals        []float64 `json:"cuda_total_gib_observed"`
	MemoryStatus      string    `json:"memory_status"`
	ECC               string    `json:"ecc"`
	BandwidthGBs      float64   `json:"bandwidth_gb_s"`
	DenseTFLOPS       TFLOPS    `json:"dense_tflops"`
	PerfStatus        string    `json:"perf_status"`
	Note              string    `json:"note"`
	CUDATotalStatus   string    `json:"cuda_total_status"`
	DriverHidden      int64     `json:"driver_hidden_mib_estimate"`
}

type gpuFile struct {
	About       string                      `json:"about"`
	StatusWords map[string]string           `json:"status_words"`
	Caution     string                      `json:"caution"`
	GPUs        []gpuRow                    `json:"gpus"`
	MIGStatus   string                      `json:"mig_status"`
	MIGSliceMB  map[string]map[string]int64 `json:"mig_slice_mb"`
}

// readGPUs decodes the cards with their priors and MIG slices.
func (c *Catalog) readGPUs() error {
	var file gpuFile
	if err := decodeJSON("gpus.json", &file); err != nil {
		return err
	}
	contexts, err := readContexts()
	if err != nil {
		return err
	}
	hidden := driverHidden(file.GPUs)
	c.gpuIndex = map[string]int{}
	for i, row := range file.GPUs {
		g := row.gpu(hidden)
		context, ok := contexts[row.Arch]
		if !ok {
			return fmt.Errorf("gpus.json: %s: architecture %q has no context prior", row.Key, row.Arch)
		}
		g.Context = context
		g.MIG = migSlices(g, file)
		if err := c.indexGPU(i, g); err != nil {
			return err
		}
		c.gpus = append(c.gpus, g)
	}
	return nil
}

// indexGPU enters every spelling of a card. Two spellings of one card may be
// the same after normalisation; two cards may not share one.
func (c *Catalog) indexGPU(i int, g GPU) error {
	for _, spelling := range append([]string{g.Key, g.Name}, g.Aliases...) {
		n := normalise(spelling)
		if other, taken := c.gpuIndex[n]; taken && other != i {
			return fmt.Errorf("gpus.json: %q names both %s and %s", spelling, c.gpus[other].Key, g.Key)
		}
		c.gpuIndex[n] = i
	}
	return nil
}

// gpu converts a row.
func (r gpuRow) gpu(hidden map[string]int64) GPU {
	g := GPU{
		Key: r.Key, Name: r.Name, Vendor: r.Vendor, Aliases: r.Aliases,
		Arch: r.Arch, ComputeCapability: r.ComputeCapability, NominalGB: r.NominalGB,
		NvidiaSMITotal: units.Bytes(r.SMITotal) * units.MiB, ECC: r.ECC, BandwidthGBs: r.BandwidthGBs,
		DenseTFLOPS: r.DenseTFLOPS, PerfSource: r.PerfStatus, Note: r.Note,
	}
	if r.Vendor == "amd" {
		g.Warning = amdWarning
	}
	g.Usable, g.UsableStatus, g.UsableSource = r.usable(hidden)
	return g
}

// usable says what the framework can get of the card and where that comes from,
// by the best evidence there is:
//
//  1. the smallest total that cudaMemGetInfo was seen to report;
//  2. what nvidia-smi prints (the smallest, when only other drivers' values are
//     known) less the most that the driver was seen to hide on a card of the
//     same architecture, or on any card where none of that architecture is known;
//  3. the nominal size in decimal gigabytes, which no card has been seen below.
func (r gpuRow) usable(hidden map[string]int64) (size units.Bytes, status, source string) {
	if len(r.CUDATotals) > 0 {
		gib := slices.Min(r.CUDATotals)
		source = fmt.Sprintf("smallest total capacity the driver was seen to report: %.2f GiB", gib)
		return units.Bytes(gib * float64(units.GiB)), r.CUDATotalStatus, source
	}
	total := r.SMITotal
	if total == 0 && len(r.SMIOther) > 0 {
		total = slices.Min(r.SMIOther)
	}
	if total == 0 {
		return units.Bytes(r.NominalGB) * units.GB, "estimated", "nominal size in decimal gigabytes: no report of this card found"
	}
	less, of := hidden[r.Arch], r.Arch
	if less == 0 {
		less, of = hidden[""], "all"
	}
	source = fmt.Sprintf("nvidia-smi's %d MiB (%s) less %d MiB, the most the driver was seen to hide on %s cards", total, r.MemoryStatus, less, of)
	return units.Bytes(total-less) * units.MiB, "estimated", source
}

// driverHidden is the largest difference between nvidia-smi's total and the
// framework's by architecture, and over all cards under "". MiB.
func driverHidden(rows []gpuRow) map[string]int64 {
	m := map[string]int64{}
	for _, r := range rows {
		m[r.Arch] = max(m[r.Arch], r.DriverHidden)
		m[""] = max(m[""], r.DriverHidden)
	}
	return m
}

// readContexts decodes the context priors by architecture.
func readContexts() (map[string]Context, error) {
	var file struct {
		Sources       map[string]string `yaml:"sources"`
		Architectures []struct {
			Name        string `yaml:"name"`
			Source      string `yaml:"source"`
			Mean        int64  `yaml:"mean_mib"`
			SD          int64  `yaml:"sd_mib"`
			KernelsMean int64  `yaml:"kernels_mean_mib"`
			KernelsSD   int64  `yaml:"kernels_sd_mib"`
		} `yaml:"architectures"`
	}
	if err := decodeYAML("architectures.yaml", &file); err != nil {
		return nil, err
	}
	m := map[string]Context{}
	for _, a := range file.Architectures {
		source, ok := file.Sources[a.Source]
		if !ok {
			return nil, fmt.Errorf("architectures.yaml: %s: no source %q", a.Name, a.Source)
		}
		m[a.Name] = Context{
			Mean: units.Bytes(a.Mean) * units.MiB, SD: units.Bytes(a.SD) * units.MiB,
			KernelsMean: units.Bytes(a.KernelsMean) * units.MiB, KernelsSD: units.Bytes(a.KernelsSD) * units.MiB,
			Source: source,
		}
	}
	return m, nil
}

// GPUs returns every card, in the table's order: by generation, server cards
// before workstation and consumer cards, AMD last.
func (c *Catalog) GPUs() []GPU {
	all := make([]GPU, len(c.gpus))
	for i, g := range c.gpus {
		all[i] = g.clone()
	}
	return all
}

// GPU finds a card by its key, name or any alias; only letters and digits
// count, and case does not. The error of an unknown name is a fault.Fields of
// one field, target.gpu, with the nearest key.
func (c *Catalog) GPU(name string) (GPU, error) {
	if i, ok := c.gpuIndex[normalise(name)]; ok {
		return c.gpus[i].clone(), nil
	}
	keys := c.nearestGPUs(name)
	want := "a card of the catalogue, or target.memory_gib for another one"
	first := ""
	if len(keys) > 0 {
		first = keys[0]
		want += "; nearest: " + strings.Join(keys, ", ")
	}
	return GPU{}, fault.Fields{{Path: "target.gpu", Got: name, Want: want, Nearest: first}}
}

func (c *Catalog) nearestGPUs(name string) []string {
	var keys []string
	for _, i := range nearest(name, c.gpuIndex, 3) {
		keys = append(keys, c.gpus[i].Key)
	}
	return keys
}

// ContextOf returns the context prior of an architecture given by compute
// capability ("9.0"), for a card that is not in the table. ok is false for a
// capability no card of the table has.
func (c *Catalog) ContextOf(computeCapability string) (prior Context, ok bool) {
	i := slices.IndexFunc(c.gpus, func(g GPU) bool { return g.ComputeCapability == computeCapability })
	if i < 0 {
		return Context{}, false
	}
	return c.gpus[i].Context, true
}

func (g GPU) clone() GPU {
	g.Aliases = slices.Clone(g.Aliases)
	g.MIG = slices.Clone(g.MIG)
	return g
}

// sortedKeys returns a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
