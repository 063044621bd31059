# memplan needs only Go to build, run and test. What some tests use beside it
# (Postgres, Chromium, Python) is installed by `make deps`; without it they are skipped.

GO        ?= go
ADDR      ?=
TESTFLAGS ?=
FUZZTIME  ?= 30s
GOLANGCI  := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
SUDO      := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# go-nvml calls what NVIDIA's header calls deprecated, for the sake of older drivers.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations

.DEFAULT_GOAL := build
.PHONY: run build generate test bench accuracy e2e lint fuzz deps cover

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

e2e: ## the tests that drive a browser
	$(GO) test -count=1 $(TESTFLAGS) ./web/e2e/...

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
