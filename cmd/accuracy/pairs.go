package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"memplan/internal/planner"
	"memplan/internal/recommend"
	"memplan/internal/wire"
)

// bounded is jobs that differ in the micro batch alone, some of which fitted and
// some of which did not: the largest that fits lies in between.
type bounded struct {
	fitted, failed []*row
}

// pairs compares the largest micro batch recommended at even odds with the
// batches that fitted and those that ran out.
func pairs(w io.Writer, rows []*row) error {
	groups, err := boundedJobs(rows)
	if err != nil {
		return err
	}
	within, answered := 0, 0
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g := groups[key]
		largest := slices.MaxFunc(g.fitted, byMicroBatch)
		least := slices.MinFunc(g.failed, byMicroBatch)
		found, err := largestMicroBatch(largest)
		if err != nil {
			fmt.Fprintf(w, "  %s: %.100v\n", largest.ID, err)
			continue
		}
		answered++
		ok := found >= largest.Job.Training.MicroBatchSize && found < least.Job.Training.MicroBatchSize
		if ok {
			within++
		}
		fmt.Fprintf(w, "  %s: %d fitted, %d did not; recommended %d\n", largest.ID, largest.Job.Training.MicroBatchSize, least.Job.Training.MicroBatchSize, found)
	}
	fmt.Fprintf(w, "the largest micro batch at even odds lies between what fitted and what did not in %d of %d jobs (%d in the corpus)\n", within, answered, len(groups))
	return nil
}

func byMicroBatch(a, b *row) int {
	return a.Job.Training.MicroBatchSize - b.Job.Training.MicroBatchSize
}

// boundedJobs groups the rows whose jobs are equal but for the micro batch and
// keeps the groups with both outcomes.
func boundedJobs(rows []*row) (map[string]bounded, error) {
	groups := map[string]bounded{}
	for _, r := range rows {
		job := r.Job
		job.Training.MicroBatchSize, job.Name, job.Labels = 0, "", nil
		text, err := wire.Encode(job)
		if err != nil {
			return nil, err
		}
		g := groups[string(text)]
		if ranOut(r) {
			g.failed = append(g.failed, r)
		} else {
			g.fitted = append(g.fitted, r)
		}
		groups[string(text)] = g
	}
	maps.DeleteFunc(groups, func(_ string, g bounded) bool {
		if len(g.fitted) == 0 || len(g.failed) == 0 {
			return true
		}
		return slices.MaxFunc(g.fitted, byMicroBatch).Job.Training.MicroBatchSize >= slices.MinFunc(g.failed, byMicroBatch).Job.Training.MicroBatchSize
	})
	return groups, nil
}

// ranOut reports whether a row says of a job that it needed more than there was.
func ranOut(r *row) bool {
	for _, m := range r.Measured {
		if m.Relation == "more_than" {
			return true
		}
	}
	return false
}

// largestMicroBatch is what is recommended for a row's job with nothing else
// changed.
func largestMicroBatch(r *row) (int, error) {
	answer, err := r.planner.Recommend(context.Background(), planner.Advice{
		Job: r.Job, Goal: recommend.LargestMicroBatch, Probability: 0.5, Allow: []string{"training.micro_batch_size"},
	}, nil)
	if err != nil || len(answer.Options) == 0 {
		return 0, err
	}
	return answer.Options[0].Estimate.Job.Training.MicroBatchSize, nil
}
