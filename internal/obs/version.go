package obs

import (
	"runtime/debug"
	"strings"
)

// BuildVersion names the running build: the module's version when it was
// installed by one, the revision otherwise, and "dev" where neither is known.
func BuildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return strings.TrimPrefix(v, "v")
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	if revision == "" {
		return "dev"
	}
	return "dev-" + revision[:min(12, len(revision))] + dirty
}
