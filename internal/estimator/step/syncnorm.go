package step

import "memplan/internal/estimator/graph"

// synchroniseNorms is nn.SyncBatchNorm.convert_sync_batchnorm: over several
// ranks, batch norms that synchronise gather the statistics of all. On one rank
// they are plain ones, and so are those in evaluation mode.
func synchroniseNorms(r *Run) {
	ranks := int64(r.Job.Parallelism.Data)
	if ranks <= 1 {
		return
	}
	r.Net.Root.Walk(func(m *graph.Module) {
		converted := m.Class == "BatchNorm2d" && r.Job.Runtime.SyncBatchNorm
		if m.Class != "SyncBatchNorm" && !converted {
			return
		}
		m.Class = "SyncBatchNorm"
		plain, weight, bias := m.Forward, m.Params[0], m.Params[1]
		m.Forward = func(f *graph.Frame, in ...*graph.Tensor) []*graph.Tensor {
			if m.Eval {
				return plain(f, in...)
			}
			return []*graph.Tensor{f.SyncBatchNorm(in[0], weight.T(), bias.T(), ranks)}
		}
	})
}
