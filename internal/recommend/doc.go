// Package recommend searches for what to change in a job: the largest micro
// batch, the fastest step, the longest sequence, the fewest cards, or the
// smallest change that makes it fit.
//
// The space is data (strategies.go): axes, and on each a few choices, each a
// patch of job paths with its cost in words. What a candidate needs is what the
// engine says of it, never a guess; how fast it is, package throughput predicts.
// Candidates are asked about best first, and those that an answer about another
// decides are not asked about at all: where one does not fit by a clear margin,
// none that saves nothing more can. Answers do not depend on how many
// processors work on them.
package recommend
