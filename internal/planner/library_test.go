package planner

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/catalog"
	"memplan/internal/estimator/model"
	"memplan/internal/estimator/spec"
)

// TestEngineBuildsWhatTheCatalogueCounts builds every model of the catalogue.
func TestEngineBuildsWhatTheCatalogueCounts(t *testing.T) {
	c, err := catalog.Open()
	require.NoError(t, err)
	for _, m := range c.Models("", 0) {
		_, n, err := countParameters(spec.Model{Config: configOf(m)})
		require.NoError(t, err, m.ID)
		require.Equal(t, m.Parameters, n, m.ID)
	}
}

func TestLibrariesAreSearched(t *testing.T) {
	c, err := catalog.Open()
	require.NoError(t, err)
	p := &Planner{catalog: c}
	require.Len(t, libraryModels(), len(model.LibraryIDs()), "every name is enough to build it")
	require.Len(t, p.Models("", 0), c.ModelCount()+len(model.LibraryIDs()))
	for _, test := range []struct {
		name, query, first string
		parameters         int64
	}{
		{"torchvision", "torchvision resnet50", "torchvision/resnet50", 25557032},
		{"one word", "densenet121", "torchvision/densenet121", 7978856},
		{"a hub's before a library's", "vit base", "google/vit-base-patch16-224", 86567656},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := p.Models(test.query, 1)[0]
			require.Equal(t, test.first, m.ID)
			require.Equal(t, test.parameters, m.Parameters)
		})
	}
	for _, m := range p.Models("timm", 0) {
		require.True(t, strings.HasPrefix(m.ID, "timm/"), m.ID)
	}
}
