// Package allocator is a model of PyTorch's native CUDA caching allocator,
// exact to the byte: which block serves which request, what stays behind,
// what is asked of the driver, and when memory is exhausted.
package allocator
