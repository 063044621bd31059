// Package estimator answers one job: it resolves the job's defaults, runs the
// training step symbolically, replays the allocations through a model of the
// framework's caching allocator, adds what lives outside it, and says whether
// the job fits.
//
// Everything below this package is pure: no clock, no input or output, no
// goroutine, no global state. The same job, device and coefficients give the
// same answer, byte for byte.
package estimator
