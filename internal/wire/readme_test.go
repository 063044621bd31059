package wire

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// readme is the page of README.md, made of the tables.
func readme() string {
	var b strings.Builder
	b.WriteString(`# Keys of a job

Made from the tables of this package by ` + "`go test ./internal/wire -run TestReadme -update`" + `; edit those instead.

## Short keys of URLs and forms

Every dotted path of the format may stand in a URL (` + "`training.optimizer.implementation=fused`" + `); these stand for the common ones.
Lists are comma separated, objects are JSON text, an empty value says nothing. ` + "`zero=0…3`" + ` is read too, as DeepSpeed's stage.

| key | path | what |
|---|---|---|
`)
	for _, a := range Aliases() {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", a.Key, a.Path, a.Help)
	}
	b.WriteString(`
## Keys of other tools

They may stand at the top level of a job or inside ` + "`training`" + `, in every notation. With the key they mean they must agree.

| key | means | whose |
|---|---|---|
`)
	for _, s := range Synonyms() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", s.Key, meaning(s), s.Help)
	}
	b.WriteString("\n## Other spellings of values\n\n| key | written | means |\n|---|---|---|\n")
	rows := maps.Clone(spellings)
	rows["every element type"] = dtypeSpellings
	for _, path := range slices.Sorted(maps.Keys(rows)) {
		for _, written := range slices.Sorted(maps.Keys(rows[path])) {
			fmt.Fprintf(&b, "| %s | `%s` | `%s` |\n", path, written, rows[path][written])
		}
	}
	b.WriteString("\n## Hugging Face optimizer names\n\n| name | means |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(optims)) {
		n := &node{kind: object, members: optims[name].settings()}
		fmt.Fprintf(&b, "| `%s` | `%s` |\n", name, n.appendJSON(nil))
	}
	return b.String()
}

// meaning says what a synonym sets.
func meaning(s Synonym) string {
	said := "`" + s.Path + "`"
	var values []string
	for _, written := range slices.Sorted(maps.Keys(s.Values)) {
		if meant := s.Values[written]; meant != "" {
			values = append(values, fmt.Sprintf("%s: `%s`", written, meant))
		}
	}
	if values != nil {
		said += " (" + strings.Join(values, ", ") + ")"
	}
	if s.Method != "" {
		said += ", and method `" + s.Method + "` unless one is given"
	}
	return said
}

func TestReadme(t *testing.T) {
	if *update {
		require.NoError(t, os.WriteFile("README.md", []byte(readme()), 0o644))
	}
	written, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Equal(t, readme(), string(written), "run the test with -update")
}
