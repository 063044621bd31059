package archtest

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "memplan/"

// rooms says what each package may import of this module, directly. A rule
// covers the packages below it too, unless a longer one does.
var rooms = []struct {
	room string
	may  []string // rooms; itself and what stands below it in its own folder are implied
}{
	{"internal/units", nil},
	{"internal/fault", nil},
	{"internal/estimator/spec", []string{"internal/units", "internal/fault"}},
	{"internal/estimator/allocator", []string{"internal/units"}},
	{"internal/estimator/graph", []string{"internal/estimator/spec", "internal/estimator/allocator", "internal/units", "internal/fault"}},
	{"internal/estimator/model", []string{"internal/estimator/graph", "internal/estimator/spec", "internal/units", "internal/fault"}},
	{"internal/estimator/step", []string{"internal/estimator/model", "internal/estimator/graph", "internal/estimator/spec", "internal/estimator/allocator", "internal/units", "internal/fault"}},
	{"internal/estimator", []string{"internal/units", "internal/fault"}},

	{"internal/catalog", below()},
	{"internal/calibrate", below()},
	{"internal/watch", []string{"internal/units", "internal/fault"}},
	{"internal/snapshot", below()},
	{"internal/accuracy", below("internal/catalog", "internal/wire", "internal/planner", "internal/snapshot", "internal/calibrate")},
	{"internal/jobfile", below("internal/catalog", "internal/wire")},
	{"internal/wire", below("internal/catalog")},
	{"internal/recommend", below("internal/catalog", "internal/calibrate")},
	{"internal/planner", useCases()},

	{"internal/store", useCases("internal/planner", "migrations")},
	{"internal/queue", useCases("internal/planner", "internal/store")},
	{"internal/hub", useCases("internal/planner")},
	{"internal/gpu", useCases("internal/planner")},
	{"internal/microbench", useCases("internal/planner", "internal/gpu")},
	{"migrations", nil},

	{"internal/obs", []string{"internal/units", "internal/fault"}},
	{"internal/auth", []string{"internal/units", "internal/fault"}},
	{"internal/api", useCases("internal/planner", "internal/obs", "internal/auth")},
	{"internal/admission", useCases("internal/planner", "internal/obs", "internal/auth")},
	{"web", useCases("internal/planner", "internal/obs", "internal/auth")},
	{"internal/archtest", nil},
	{"docs", []string{""}}, // tests of what the pages say
	{"cmd", []string{""}},  // everything
}

// below is what every package above the estimator may see, and more.
func below(more ...string) []string {
	return append(more, "internal/estimator", "internal/units", "internal/fault")
}

// useCases is what the planner and the doors may see, and more.
func useCases(more ...string) []string {
	return below(append(more, "internal/recommend", "internal/calibrate", "internal/catalog", "internal/jobfile", "internal/snapshot", "internal/watch", "internal/wire")...)
}

// libraries says who alone may import a library outside tests.
var libraries = []struct {
	path string
	only []string
}{
	{"github.com/danielgtaylor/huma/v2", []string{"internal/api", "internal/wire"}},
	{"github.com/go-chi/chi/v5", []string{"internal/api", "web", "cmd"}},
	{"github.com/go-chi/httprate", []string{"internal/auth"}},
	{"github.com/jackc/pgx/v5", []string{"internal/store", "internal/queue"}},
	{"modernc.org/sqlite", []string{"internal/store"}},
	{"github.com/pressly/goose/v3", []string{"internal/store"}},
	{"database/sql", []string{"internal/store", "internal/queue"}},
	{"github.com/a-h/templ", []string{"web"}},
	{"github.com/alecthomas/kong", []string{"cmd"}},
	{"github.com/prometheus/client_golang", []string{"internal/obs"}},
	{"go.yaml.in/yaml/v3", []string{"internal/wire", "internal/catalog", "internal/jobfile"}},
	{"github.com/pelletier/go-toml/v2", []string{"internal/jobfile"}},
	{"net/http", []string{"internal/api", "internal/auth", "internal/obs", "internal/admission", "internal/hub", "internal/store/pgtest", "web", "cmd"}},
	{"github.com/stretchr/testify", []string{"internal/store/storetest", "web/e2e"}},
	{"github.com/google/go-cmp", []string{"internal/store/storetest"}},
	{"github.com/riverqueue/river", []string{"internal/queue"}},
	{"github.com/NVIDIA/go-nvml", []string{"internal/gpu"}},
	{"github.com/ebitengine/purego", []string{"internal/gpu"}},
	{"pgregory.net/rapid", nil},
	{"github.com/chromedp/chromedp", []string{"web/e2e"}},
	{"github.com/tsenart/vegeta/v12", nil},
}

// impure is what the estimator does without: it is pure.
var impure = []string{"context", "log", "math/rand", "net", "os", "syscall", "time"}

// pkg is what go list says of a package.
type pkg struct {
	ImportPath string
	Imports    []string
}

// packages lists the module's packages with their imports outside tests.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...")
	out, err := cmd.Output()
	require.NoError(t, err, "go list")
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var p pkg
		require.NoError(t, dec.Decode(&p))
		all = append(all, p)
	}
	require.NotEmpty(t, all)
	return all
}

// within reports whether path is room or stands below it.
func within(path, room string) bool {
	return room == "" || path == room || strings.HasPrefix(path, room+"/")
}

// anyWithin reports whether path is within one of the rooms.
func anyWithin(path string, all []string) bool {
	return slices.ContainsFunc(all, func(room string) bool { return within(path, room) })
}

// ruleOf returns the longest rule that covers path.
func ruleOf(path string) (room string, may []string, found bool) {
	for _, r := range rooms {
		if within(path, r.room) && len(r.room) >= len(room) {
			room, may, found = r.room, r.may, true
		}
	}
	return room, may, found
}

func TestImportDirections(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		t.Run(path, func(t *testing.T) {
			room, may, found := ruleOf(path)
			require.True(t, found, "no rule for this package: give it a line in rooms")
			for _, imported := range p.Imports {
				target, ours := strings.CutPrefix(imported, module)
				if ours && !within(target, room) {
					require.True(t, anyWithin(target, may), "%s must not import %s", path, target)
				}
			}
		})
	}
}

func TestLibrariesHaveOneHome(t *testing.T) {
	all := packages(t)
	for _, lib := range libraries {
		t.Run(lib.path, func(t *testing.T) {
			for _, p := range all {
				path := strings.TrimPrefix(p.ImportPath, module)
				uses := slices.ContainsFunc(p.Imports, func(i string) bool { return within(i, lib.path) })
				require.False(t, uses && !anyWithin(path, lib.only), "only %v may import %s, not %s", lib.only, lib.path, path)
			}
		})
	}
}

func TestEstimatorIsPure(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if !within(path, "internal/estimator") {
			continue
		}
		for _, imported := range p.Imports {
			require.False(t, anyWithin(imported, impure), "%s imports %s, and the estimator is pure", path, imported)
		}
	}
}

// TestTheTestCanFail makes sure that a wrong edge would be caught.
func TestTheTestCanFail(t *testing.T) {
	tests := []struct {
		name, from, to string
		allowed        bool
	}{
		{name: "api to planner", from: "internal/api", to: "internal/planner", allowed: true},
		{name: "api to store", from: "internal/api", to: "internal/store"},
		{name: "web's charts to hub", from: "web/chart", to: "internal/hub"},
		{name: "allocator to graph", from: "internal/estimator/allocator", to: "internal/estimator/graph"},
		{name: "graph to allocator", from: "internal/estimator/graph", to: "internal/estimator/allocator", allowed: true},
		{name: "planner to api", from: "internal/planner", to: "internal/api"},
		{name: "cmd to store", from: "cmd/server", to: "internal/store", allowed: true},
		{name: "estimator to its own rooms", from: "internal/estimator", to: "internal/estimator/step", allowed: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			room, may, found := ruleOf(tt.from)
			require.True(t, found)
			require.Equal(t, tt.allowed, within(tt.to, room) || anyWithin(tt.to, may))
		})
	}
}
