package main

import (
	"memplan/internal/estimator/graph"
	"memplan/internal/estimator/spec"
)

// cardOf gives what kernels ask of the cards the measured jobs ran on.
func cardOf(key string) graph.Device {
	c := func(major, minor int, sms, threads int64) graph.Device {
		return graph.Device{Capability: spec.Version{major, minor}, Multiprocessors: sms, ThreadsPerSM: threads}
	}
	switch key {
	case "H100-SXM5-80GB", "H200-SXM-141GB":
		return c(9, 0, 132, 2048)
	case "RTX-4090":
		return c(8, 9, 128, 1536)
	case "V100-SXM2-32GB":
		return c(7, 0, 80, 2048)
	}
	return c(8, 0, 108, 2048)
}
