package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// VersionSet is the versions of libraries that were installed together.
type VersionSet struct {
	Name      string            `json:"name" yaml:"name"`
	Libraries map[string]string `json:"libraries" yaml:"libraries"`
}

func (c *Catalog) readVersions() error {
	var file struct {
		Sets    []VersionSet      `yaml:"sets"`
		Aliases map[string]string `yaml:"aliases"`
	}
	if err := decodeYAML("versions.yaml", &file); err != nil {
		return err
	}
	if len(file.Sets) == 0 {
		return fmt.Errorf("versions.yaml: no set")
	}
	c.sets, c.libraryAliases = file.Sets, file.Aliases
	for alias, library := range file.Aliases {
		if len(c.KnownVersions(library)) == 0 {
			return fmt.Errorf("versions.yaml: alias %q of the unknown library %q", alias, library)
		}
	}
	return nil
}

// VersionSets returns the sets the engine's rules were checked against, the
// default first.
func (c *Catalog) VersionSets() []VersionSet {
	all := slices.Clone(c.sets)
	for i := range all {
		all[i].Libraries = maps.Clone(all[i].Libraries)
	}
	return all
}

// DefaultVersions returns the newest known version of every library: those of
// the default set, and of libraries it lacks the newest of any set.
func (c *Catalog) DefaultVersions() map[string]string {
	m := map[string]string{}
	for _, s := range slices.Backward(c.sets) {
		maps.Copy(m, s.Libraries)
	}
	return m
}

// KnownVersions returns the versions of a library in the sets, newest first;
// none for a library the catalogue does not know. Case and the usual other
// names (pytorch) do not matter.
func (c *Catalog) KnownVersions(library string) []string {
	library = strings.ToLower(library)
	if real, ok := c.libraryAliases[library]; ok {
		library = real
	}
	var list []string
	for _, s := range c.sets {
		if v, ok := s.Libraries[library]; ok && !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b string) int { return slices.Compare(release(b), release(a)) })
	return list
}

// NearestVersion returns the known version of a library nearest to version, and
// whether it is that very one as far as version goes: 2.15 is exactly 2.15.0,
// and so is 2.15.0+cu130. No version means the newest known. known is empty for
// a library the catalogue does not know.
//
// Nearest: within the same major the smallest difference of the minor, then of
// the patch, the older of two equally near; another major only when that one is
// not known.
func (c *Catalog) NearestVersion(library, version string) (known string, exact bool) {
	list := c.KnownVersions(library)
	if len(list) == 0 {
		return "", false
	}
	want := release(version)
	if len(want) == 0 {
		return list[0], strings.TrimSpace(version) == ""
	}
	best := slices.MinFunc(list, func(a, b string) int {
		return cmp.Or(slices.Compare(apart(want, release(a)), apart(want, release(b))), slices.Compare(release(a), release(b)))
	})
	n := min(len(want), len(release(best)))
	return best, slices.Equal(want[:n], release(best)[:n]) && !slices.ContainsFunc(want[n:], nonZero)
}

func nonZero(n int) bool { return n != 0 }

// release reads the numbers of a version up to the first part that is none:
// "2.15.0+cu130" and "2.15.0rc1" are 2, 15, 0; "v2.6" is 2, 6.
func release(version string) []int {
	var parts []int
	for part := range strings.SplitSeq(strings.TrimPrefix(strings.TrimSpace(version), "v"), ".") {
		digits := len(part) - len(strings.TrimLeft(part, "0123456789"))
		n, err := strconv.Atoi(part[:digits])
		if err != nil {
			break
		}
		parts = append(parts, n)
		if digits < len(part) {
			break
		}
	}
	return parts
}

// apart is the difference of two versions part by part, a missing part being 0.
// Across majors only the majors count, and then the nearer end of the other
// major: its last version when it is older, its first when it is newer.
func apart(a, b []int) []int {
	d := make([]int, max(len(a), len(b)))
	for i := range d {
		d[i] = abs(part(a, i) - part(b, i))
	}
	if len(d) > 0 && d[0] != 0 {
		for i := 1; i < len(d); i++ {
			d[i] = part(b, i)
			if part(b, 0) < part(a, 0) {
				d[i] = -d[i]
			}
		}
	}
	return d
}

func part(v []int, i int) int {
	if i < len(v) {
		return v[i]
	}
	return 0
}

func abs(n int) int { return max(n, -n) }
