package step_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"memplan/internal/estimator"
	"memplan/internal/estimator/spec"
	"memplan/internal/estimator/step"
)

// The traces in testdata/stages are of one rank of a job of Megatron-core, of
// the pipeline stage that the file's name ends with: three steps, without the
// allocations of the compiler that fuses activations, and without the one number
// that clipping makes where the norm asks for it. Marks lie elsewhere than the
// engine's and are not compared.
func TestStages(t *testing.T) {
	jobs, err := filepath.Glob("testdata/stages/*.job.json")
	require.NoError(t, err)
	require.NotEmpty(t, jobs)
	for _, file := range jobs {
		name := strings.TrimSuffix(filepath.Base(file), ".job.json")
		t.Run(name, func(t *testing.T) {
			stage := int(name[len(name)-1] - '0')
			want := readEvents(t, strings.TrimSuffix(file, ".job.json")+".events.gz")
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			var job spec.Job
			require.NoError(t, json.Unmarshal(data, &job))
			job, _, err = estimator.Resolve(job)
			require.NoError(t, err)
			plan, err := step.CompileStage(nil, job, cards[job.Target.GPU], stage, nil)
			require.NoError(t, err)
			w := &writer{size: map[int32]int64{}, plan: plan}
			w.parts(plan.Program)

			real, ours := allocations(want), allocations(texts(w.out))
			require.GreaterOrEqual(t, len(ours), len(real))
			for i := range real {
				require.Equal(t, real[i], ours[i], "allocation %d", i)
			}
		})
	}
}

func texts(lines []line) []string {
	all := make([]string, len(lines))
	for i, l := range lines {
		all[i] = l.text
	}
	return all
}

// allocation is the bytes allocated, and those freed since the one before, by
// size.
type allocation struct {
	bytes string
	freed map[string]int
}

func allocations(events []string) []allocation {
	var all []allocation
	freed := map[string]int{}
	for _, e := range events {
		switch e[0] {
		case '-':
			freed[e]++
		case '+':
			all = append(all, allocation{e, freed})
			freed = map[string]int{}
		}
	}
	return all
}
