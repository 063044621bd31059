// Package gpu lists the cards of this host: through NVML where there is an
// NVIDIA driver, through the CUDA driver where that is all there is, and from
// the kernel's files for AMD cards, whose totals are all that memplan reads of
// them. It is planner.Devices. It changes nothing on a card.
package gpu
