package jobfile

import (
	"strings"
	"sync"

	"memplan/internal/catalog"
)

// labels ties the labels that GPU feature discovery gives nodes, a product's
// name with dashes for blanks, to catalogue keys.
var labels = sync.OnceValues(func() (label, key map[string]string) {
	label, key = map[string]string{}, map[string]string{}
	c, err := catalog.Open()
	if err != nil {
		panic(err) // the catalogue is embedded and tested
	}
	for _, g := range c.GPUs() {
		key[strings.ToLower(g.Key)] = g.Key
		for _, name := range g.Aliases {
			if l := strings.ReplaceAll(name, " ", "-"); key[l] == "" {
				key[l] = g.Key
			}
			if strings.HasPrefix(name, "NVIDIA ") && label[g.Key] == "" {
				label[g.Key] = strings.ReplaceAll(name, " ", "-")
			}
		}
	}
	return label, key
})

// productLabel is the label of a node with that card; "" where none is known.
func productLabel(gpu string) string {
	label, _ := labels()
	return label[gpu]
}

// cardOfLabel is the catalogue key a label stands for, or the label itself.
func cardOfLabel(label string) string {
	_, key := labels()
	if k := key[label]; k != "" {
		return k
	}
	return label
}

// cardOfKey is the catalogue key that a name spells in other letters, or the
// name in capitals, as cards are called.
func cardOfKey(name string) string {
	_, key := labels()
	if k := key[strings.ToLower(name)]; k != "" {
		return k
	}
	return strings.ToUpper(name)
}

// accelerators are SkyPilot's names of cards
// (skypilot-org/skypilot:sky/utils/accelerator_registry.py and its catalogue).
var accelerators = []struct{ gpu, name string }{
	{"A100-SXM4-80GB", "A100-80GB"},
	{"A100-PCIE-80GB", "A100-80GB"},
	{"A100-SXM4-40GB", "A100"},
	{"H100-SXM5-80GB", "H100"},
	{"H200-SXM-141GB", "H200"},
	{"B200", "B200"},
	{"GH200-96GB", "GH200"},
	{"L4", "L4"},
	{"L40", "L40"},
	{"L40S", "L40S"},
	{"A10", "A10"},
	{"A10G", "A10G"},
	{"A40", "A40"},
	{"T4", "T4"},
	{"V100-SXM2-16GB", "V100"},
	{"V100-SXM2-32GB", "V100-32GB"},
	{"RTX-4090", "RTX4090"},
	{"RTX-3090", "RTX3090"},
	{"RTX-A6000", "RTXA6000"},
	{"RTX-6000-Ada", "RTX6000-Ada"},
	{"MI300X", "MI300X"},
}

func accelerator(gpu string) string {
	for _, a := range accelerators {
		if a.gpu == gpu {
			return a.name
		}
	}
	return ""
}

// cardOfAccelerator is the catalogue key of SkyPilot's name, or the name.
func cardOfAccelerator(name string) string {
	for _, a := range accelerators {
		if strings.EqualFold(a.name, name) {
			return a.gpu
		}
	}
	return name
}
