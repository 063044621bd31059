package catalog

import (
	"fmt"
	"strings"

	"memplan/internal/fault"
	"memplan/internal/units"
)

// Slice is a MIG profile of a card.
type Slice struct {
	Profile string      `json:"profile"` // "1g.10gb"
	Nominal units.Bytes `json:"nominal_bytes"`
	Usable  units.Bytes `json:"usable_bytes"`
	Source  string      `json:"source"`
}

// migFamilies names the profile table of each card that has one: cards with the
// same chip and memory share it.
var migFamilies = map[string]string{
	"A30":            "A30",
	"A100-SXM4-40GB": "A100-40GB",
	"A100-SXM4-80GB": "A100-80GB", "A100-PCIE-80GB": "A100-80GB", "A800-SXM4-80GB": "A100-80GB",
	"H100-SXM5-80GB": "H100-80GB", "H100-PCIE-80GB": "H100-80GB", "H800-SXM5-80GB": "H100-80GB",
	"H200-SXM-141GB": "H200", "H200-NVL": "H200",
	"B200": "B200",
}

// migSlices lists a card's profiles, smallest first. A profile's usable size is
// its share of the table scaled by what the whole card gives over what the
// table says of the largest profile, and never more than the table's: the
// tables of Hopper and later are nominal and would promise more than the card.
func migSlices(g GPU, file gpuFile) []Slice {
	table := file.MIGSliceMB[migFamilies[g.Key]]
	var whole int64
	for _, mib := range table {
		whole = max(whole, mib)
	}
	var list []Slice
	for _, profile := range sortedKeys(table) {
		nominal := units.Bytes(table[profile]) * units.MiB
		share := min(1, float64(g.Usable)/float64(units.Bytes(whole)*units.MiB))
		list = append(list, Slice{
			Profile: profile, Nominal: nominal, Usable: units.Bytes(float64(nominal) * share),
			Source: "estimated: " + file.MIGStatus,
		})
	}
	return list
}

// Slice finds a MIG profile of a card: "1g.10gb", also "MIG 1g.10gb". The error
// is a fault.Fields of one field, target.mig_profile.
func (g GPU) Slice(profile string) (Slice, error) {
	want := strings.TrimPrefix(normalise(profile), "mig")
	names := make([]string, len(g.MIG))
	index := map[string]int{}
	for i, s := range g.MIG {
		if normalise(s.Profile) == want {
			return s, nil
		}
		names[i] = s.Profile
		index[normalise(s.Profile)] = i
	}
	f := fault.Field{Path: "target.mig_profile", Got: profile, Want: fmt.Sprintf("no profile: the catalogue has none of %s", g.Key)}
	if len(names) > 0 {
		f.Want = "one of " + strings.Join(names, ", ")
	}
	if near := nearest(want, index, 1); len(near) > 0 {
		f.Nearest = names[near[0]]
	}
	return Slice{}, fault.Fields{f}
}
