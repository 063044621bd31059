package planner

import (
	"context"
	"fmt"
	"strconv"

	"memplan/internal/estimator/spec"
	"memplan/internal/fault"
)

// resolveRanks makes the target's count and the product of the parallel sizes
// one: the side that is not given follows the other. Cards beyond what tensor,
// pipeline and context use are data parallel.
func (p *Planner) resolveRanks(_ context.Context, r *prepared) error {
	par, t := &r.job.Parallelism, &r.job.Target
	if t.Count == 0 {
		t.Count = par.Ranks()
		r.assume("target.count", t.Count, false, "the product of the parallel dimensions")
		return nil
	}
	ranks := par.Ranks()
	if par.Data == 0 && t.Count%ranks == 0 {
		r.spreadData(t.Count / ranks)
		ranks = par.Ranks()
	}
	if ranks == t.Count {
		return nil
	}
	return fault.Fields{{
		Path: "target.count", Got: strconv.Itoa(t.Count), Nearest: strconv.Itoa(ranks),
		Want: fmt.Sprintf("the product of data, tensor, pipeline and context, which is %s = %d", productText(*par), ranks),
	}}
}

// spreadData takes the cards that are left for data parallelism.
func (r *prepared) spreadData(data int) {
	par := &r.job.Parallelism
	par.Data = data
	if data == 1 {
		return
	}
	r.assume("parallelism.data", data, true, "the cards of target.count that no other dimension uses")
	if par.Sharding == "" {
		par.Sharding = "ddp"
		r.assume("parallelism.sharding", "ddp", true, "several data-parallel ranks, and no sharding was named")
	}
	r.coefficients.NCCL, r.coefficients.CacheError = ncclPrior(*par), cachePrior(*par)
}

func productText(p spec.Parallelism) string {
	return fmt.Sprintf("%d × %d × %d × %d", max(p.Data, 1), max(p.Tensor, 1), max(p.Pipeline, 1), max(p.Context, 1))
}
