// Package microbench runs probes on a card of this host: small programs that
// each isolate something that no simulation can derive, and a few steps of
// small training jobs. It is planner.Prober.
//
// The first tier asks the CUDA driver by itself. The second is PyTorch in a
// process of its own for every probe, running the embedded probe.py with a plan
// on standard input and lines of JSON on standard output. A probe leaves a
// tenth of the card free and runs where nobody else computes, unless forced; it
// has a time limit, and its process ends with memplan's. What goes wrong in it
// is its result.
package microbench
