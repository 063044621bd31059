// Package calibrate turns measured runs into coefficients with intervals.
//
// A measured size is taken to be
//
//	simulated × (1 + bias + bias of its group) + Σ coefficient × term + error
//
// where simulated is what the engine says lies inside the caching allocator, the
// coefficients are what no simulation derives (the context, NCCL, convolution
// workspaces) with the terms they stand in, and the error is the engine's own:
// relative to the simulated bytes, with heavy tails, and with a scale for each
// group of jobs. Every coefficient and bias has a normal prior. Fit finds the
// posterior by expectation maximisation over the weights that make a Student t
// of normals (Lange, Little and Taylor, Robust Statistical Modeling Using the t
// Distribution, 1989), which is also what makes it robust.
//
// The scale of a group is drawn towards that of all groups by how few runs it
// has; a group that nobody measured gets the widest there is.
//
// The package is pure: the same runs give the same fit.
package calibrate
