//go:build !linux

package cuda

// load finds no driver: memplan runs probes on Linux.
func load(string) (*Driver, error) { return nil, ErrAbsent }
