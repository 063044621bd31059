package step

// compiled is the doubt of a job under torch.compile. What Inductor fuses and
// what its partitioner saves depends on the compiler; the job is run as eager
// PyTorch runs it, which saves more: that is the upper end of the range. The
// spread reaches down to about half: BERT with its dropout compiled is 42 % below
// eager on real PyTorch.
var compiled = Doubt{
	Code: "compile", Path: "training.compile", Error: 0.25,
	Text: "torch.compile fuses operations and keeps less for backward than eager PyTorch, which is what was simulated: the true peak is likely lower, by up to about half of it where much is elementwise. Where the cache of compiled code is cold, the first step also tunes kernels, which is not counted.",
}
