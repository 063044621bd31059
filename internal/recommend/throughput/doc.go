// Package throughput predicts how long a training step takes, to rank jobs that
// do the same work in different ways. It adds up what the graph's own operations
// compute and move (roofline by kernel, less efficient where a product is
// small), what ranks exchange by sharding and topology, what is offloaded, and
// the optimizer's pass over its state. Rates of cards and links are priors with
// a spread; an answer is a range. It ranks; it does not promise seconds.
package throughput
