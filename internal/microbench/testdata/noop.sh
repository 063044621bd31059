#!/bin/sh
# A Python for probes whose CUDA driver does nothing: $NOOP_PYTHON is of an
# environment with such a driver in its folder oracle-lib.
lib=$("$NOOP_PYTHON" -c 'import sys; print(sys.prefix)')/oracle-lib
exec env LD_PRELOAD="$lib/libcuda.so.1" LD_LIBRARY_PATH="$lib" CUDA_HOME="$lib/cuda_home" OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 \
	"$NOOP_PYTHON" "$(dirname "$0")/noop.py" "$@"
