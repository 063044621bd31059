# memplan needs only Go to build, run and test. What some tests use beside it
# (Postgres, Chromium, Python) is installed by `make deps`; without it they are skipped.

GO        ?= go
ADDR      ?=
TESTFLAGS ?=
FUZZTIME  ?= 30s
PYTHON    ?= python3
GOLANGCI  := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
SUDO      := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# go-nvml calls what NVIDIA's header calls deprecated, for the sake of older drivers.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations

.DEFAULT_GOAL := build
.PHONY: run build generate test bench accuracy gpu-check gpu-rehearsal probes-cpu e2e lint fuzz deps cover

run: ## start the service at http://127.0.0.1:8080, or ADDR=host:port, with an SQLite file in your data directory
	$(GO) run ./cmd/server $(if $(ADDR),--addr $(ADDR))

build: ## bin/server and bin/memplan
	$(GO) build -o bin/ ./cmd/server ./cmd/memplan

generate: ## the Go code of the pages' templates, which is committed
	$(GO) tool templ generate

test: ## vet and test everything
	$(GO) vet ./...
	$(GO) test $(TESTFLAGS) ./...

bench: ## the benchmarks, without the tests
	$(GO) test -run '^$$' -bench . -benchmem ./...

accuracy: ## compare the engine with measured jobs: make accuracy CORPUS=folder
ifeq ($(CORPUS),)
	@echo "accuracy: skipped, for want of measured jobs; run: make accuracy CORPUS=folder"
else
	$(GO) run ./cmd/accuracy "$(CORPUS)"
endif

gpu-check: ## on a host with an NVIDIA GPU and PyTorch: the whole calibration and 30 real training steps, predicted against measured
	@if ! command -v nvidia-smi >/dev/null; then \
	  echo "gpu-check: skipped, for want of an NVIDIA GPU; on a host with one, and PyTorch: make gpu-check PYTHON=python3"; \
	else \
	  $(GO) run ./cmd/memplan benchmark --seconds 470 --python "$(PYTHON)"; \
	fi

gpu-rehearsal: ## gpu-check on a CUDA driver that does nothing: make gpu-rehearsal ORACLE=python
ifeq ($(ORACLE),)
	@echo "gpu-rehearsal: skipped, for want of a Python with PyTorch and a no-op CUDA driver in its folder oracle-lib; run: make gpu-rehearsal ORACLE=python"
else
	LD_LIBRARY_PATH="$$($(ORACLE) -c 'import sys; print(sys.prefix)')/oracle-lib" NOOP_PYTHON="$(ORACLE)" \
	  $(GO) run ./cmd/memplan benchmark --seconds 470 --python internal/microbench/testdata/noop.sh
endif

probes-cpu: ## the probes of single operations on a Python with PyTorch, without a GPU: make probes-cpu PYTHON=python3
	@if "$(PYTHON)" -c 'import torch' 2>/dev/null; then \
	  MEMPLAN_TORCH_PYTHON="$(PYTHON)" $(GO) test -tags torch -count=1 -run CPU -v ./internal/microbench; \
	else \
	  echo "probes-cpu: skipped, for want of PyTorch; run: make probes-cpu PYTHON=python3, of an environment with it"; \
	fi

e2e: ## the tests that drive a browser
	$(GO) test -count=1 $(TESTFLAGS) ./web/e2e/...

graphs: ## the graphs that tests read, of a Python with PyTorch and torchvision: make graphs PYTHON=python3
	@cd internal/estimator/testdata/graphs && export PYTHONPATH=../../../../clients/python:. && \
	if ! $(PYTHON) -B -c "import torch, torchvision" 2>/dev/null; then \
	  echo "graphs: skipped, for want of PyTorch and torchvision; run: make graphs PYTHON=python3, of an environment with them"; \
	else \
	  for m in MLP:2x64 ConvNet:2x3x64x64 Transformer:2x64:int64 Odd:2x64 resnet18:2x3x224x224; do \
	    name=$${m%%:*}; out=$$(echo $$name | tr A-Z a-z).json; \
	    $(PYTHON) -B -m memplan_export modules:$$name --input $${m#*:} -o $$out || exit 1; \
	  done; \
	fi

lint: ## formatting and linters; fetches them the first time
	@test -z "$$($(GO) tool -modfile=tools/go.mod gofumpt -l $$(git ls-files '*.go' | grep -v _templ.go) | tee /dev/stderr)"
	$(GO) run $(GOLANGCI) run ./...

fuzz: ## every fuzz target for $(FUZZTIME)
	@for pkg in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "$$pkg $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
	  done; \
	done

deps: ## on Debian: the Postgres, Chromium and Python that tests use
	$(SUDO) apt-get update
	$(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends postgresql chromium curl python3 gcc libc6-dev

cover: ## bin/cover.html, and the share of statements that tests reach
	@mkdir -p bin
	$(GO) test -coverpkg=./... -coverprofile=bin/cover.out ./...
	$(GO) tool cover -html=bin/cover.out -o bin/cover.html
	$(GO) tool cover -func=bin/cover.out | tail -n 1
