package obs

import (
	"runtime/debug"
	"strings"
)

// stamped is the version a release build is given by the linker:
// -ldflags "-X memplan/internal/obs.stamped=1.2.3".
var stamped string

// BuildVersion names the running build: the version it was stamped with or
// installed by, the revision otherwise, and "dev" where neither is known.
func BuildVersion() string {
	if stamped != "" {
		return stamped
	}
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
