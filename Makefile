# Tendril. Needs Go, a C compiler, git and make; everything else comes by go.mod. "make help" lists the targets.

PRODUCT  := proto lib services cmd
PACKAGES := $(PRODUCT:%=./%/...)

# Event signatures are checked four times as fast by libsecp256k1, by cgo. Without the tag everything builds in pure Go.
TAGS := -tags libsecp256k1
# "make vet" has looked at everything already when tests run, and no test needs DWARF.
TEST := go test $(TAGS) -vet=off -ldflags=-w
# Tests wait as often as they compute, so more of them run at once than the machine has processors.
# The race detector would sleep for a second at the end of each package.
PROCESSORS := $(shell getconf _NPROCESSORS_ONLN)
CROWDED    := -p $(shell expr $(PROCESSORS) + 1) -parallel $(shell expr $(PROCESSORS) \* 2)
RACE       := GORACE=atexit_sleep_ms=0 $(TEST) -race

# What makes images is a module outside the workspace, as the tools are.
OUTSIDE := cd deploy/image && GOWORK=off

# Names of the images. These are the ones that deploy/k8s/overlays/local wants.
IMAGE      ?= docker.io/local/tendril:dev
NATS_IMAGE ?= docker.io/local/nats:dev

# A build at a tag says its version; every other says its commit.
VERSION ?= $(shell git describe --tags --exact-match --match 'v[0-9]*' --dirty 2>/dev/null)
STAMP   := $(if $(VERSION),-ldflags "-X tendril.dev/lib/obs.version=$(VERSION)")
PREFIX  ?= /usr/local

# Completions name the program that was asked for them.
INSTALLED = sed 's|$(CURDIR)/bin/tendril|$(PREFIX)/bin/tendril|g'

# How often each fuzz target is run. A time would do too, but at its end `go test` now and then calls its own deadline a failure.
FUZZTIME ?= 10000x
BENCH    ?= .
CHAOS    ?= 1m
RUNS     ?= 1
SEED     ?=
CHAOSTESTS ?= TestChaos|TestNeverTwoHolders|TestTwoDisturbances|TestOddRelaysDisturbed|TestNoStaleAnswer|TestFollowersReachTheHeadAfterFailovers
ROWS     ?=
PROMTOOL ?= promtool
RELEASE  ?= bin/release
EVENTS   ?= 100000

.DEFAULT_GOAL := help
.PHONY: help run build install test lint vet staticcheck format purego unit chaos e2e bench bench-table fuzz docs tidy dashboards nats clean image nats-image release k8s-test k8s-sizes manifests

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-12s %s\n", $$1, $$2 }'

run: bin/tendril ## run everything in one process; NGIT_DOMAIN is its address on this machine unless it is set
	@if [ -z "$$NGIT_DOMAIN" ] && ! grep -Eqs '^ *(export +)?NGIT_DOMAIN *=' "$${NGIT_ENV_FILE:-.env}"; then \
		case "$$NGIT_BIND_ADDRESS" in 127.*|localhost:*) export NGIT_DOMAIN="$$NGIT_BIND_ADDRESS";; *) export NGIT_DOMAIN=127.0.0.1:7334;; esac; \
	fi; \
	exec bin/tendril up

build: bin/tendril ## build bin/tendril

.PHONY: bin/tendril
bin/tendril:
	@mkdir -p bin
	go build $(TAGS) $(STAMP) -o bin/ ./cmd/tendril

install: bin/tendril ## copy tendril, and its completions for bash, zsh and fish, below PREFIX (/usr/local)
	install -D -m 755 bin/tendril $(DESTDIR)$(PREFIX)/bin/tendril
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
		$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	bin/tendril completion bash | $(INSTALLED) >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/tendril
	bin/tendril completion zsh | $(INSTALLED) >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tendril
	bin/tendril completion fish | $(INSTALLED) >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tendril.fish

test: lint purego unit manifests e2e ## everything that CI runs

lint: format vet staticcheck ## gofmt, go vet, staticcheck

format:
	@unformatted=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard -- '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not gofmt-ed:"; echo "$$unformatted"; exit 1; fi

vet:
	go vet $(TAGS) $(PACKAGES) ./test/...
	$(OUTSIDE) go vet ./...

staticcheck: bin/staticcheck
	bin/staticcheck $(TAGS) $(PACKAGES) ./test/...
	$(OUTSIDE) ../../bin/staticcheck ./...

purego: ## the program, which has every service, builds without cgo
	CGO_ENABLED=0 go build -o /dev/null ./cmd/tendril

unit: ## the tests of every package of the product, under the race detector
	$(RACE) $(CROWDED) $(PACKAGES)
	$(OUTSIDE) go test ./...

ifneq ($(SEED),)
chaos: ## processes that are killed at random, for CHAOS (1m), RUNS (1) times, and what must not come of it; CHAOSTESTS selects tests; SEED=7 or SEED=1-50: the story of random histories instead
	TENDRIL_SEED=$(SEED) $(TEST) -count 1 -timeout 6h -v -run '^TestRandomHistories$$' ./test/history
else
chaos:
	TENDRIL_CHAOS=$(CHAOS) $(TEST) -count $(RUNS) -timeout 6h -p 1 -v -run '^($(CHAOSTESTS))$$' ./lib/claim ./lib/query ./services/relayconn ./test/e2e
endif

e2e: ## tests of the whole system against real NATS, relays and git
	$(TEST) $(CROWDED) -timeout 20m ./test/...

# A module outside the workspace: what it needs is no concern of the services.
manifests: ## the Kubernetes manifests: privileges, probes, network policies, settings
	cd deploy/k8s && GOWORK=off go vet ./... && GOWORK=off go test ./...

dashboards: ## test alerts, and all queries of alerts and dashboards against a run, with PROMTOOL (promtool; Debian's package prometheus has it)
	$(PROMTOOL) check rules deploy/prometheus/rules.yaml
	cd deploy/prometheus && $(PROMTOOL) test rules rules_test.yaml
	TENDRIL_PROMTOOL=$$(command -v $(PROMTOOL)) $(TEST) -count 1 -v -run '^TestEveryMetricOfThePage$$' ./test/e2e

bench: ## benchmarks; BENCH selects them
	$(TEST) -run '^$$' -bench '$(BENCH)' -benchmem $(PACKAGES) ./test/...

bench-table: ## the whole program at its limit, beside the machine's own; ROWS selects rows, EVENTS is the size
	$(TEST) -run '^TestTable$$' -timeout 60m -v ./test/bench -args -table -rows '$(ROWS)' -events $(EVENTS)

fuzz: ## every fuzz target FUZZTIME (10000x) times
	@grep -rl --include='*_test.go' '^func Fuzz' $(PRODUCT) | sort | while read -r file; do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$$file"); do \
			$(TEST) -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")" || exit 1; \
		done; \
	done

docs: ## write docs/configuration.md and .env.example from the declaration of the settings
	cd lib/config && go generate .

tidy: ## go mod tidy in every module
	@for m in . tools deploy/image deploy/k8s deploy/release; do echo "cd $$m && go mod tidy"; (cd $$m && GOWORK=off go mod tidy) || exit 1; done

nats: bin/nats ## the nats program: make nats ARGS="sub 'grasp.>'"
	@bin/nats $(ARGS)

image: ## make bin/image/tendril.tar, the image of all services, without Docker; IMAGE is its name
	@deploy/image/build $(IMAGE) bin/image/tendril.tar ./cmd/tendril git

nats-image: ## make bin/image/nats.tar, a NATS server for clusters without a registry; NATS_IMAGE is its name
	@CGO_ENABLED=0 deploy/image/build $(NATS_IMAGE) bin/image/nats.tar github.com/nats-io/nats-server/v2

release: ## make RELEASE (bin/release): programs, packages, image, manifests, SBOM, checksums; VERSION is the tag (docs/releases.md)
	@rm -rf $(RELEASE)
	@deploy/release/build $(RELEASE)

k8s-test: ## try everything on the Kubernetes that kubectl knows; test/k8s/k8s_test.go has its settings
	@K8S_OVERLAYS=$${K8S_OVERLAYS:-local,local-r3} $(TEST) -count 1 -timeout 6h -v -run TestKubernetes ./test/k8s

k8s-sizes: ## measure there what each service needs
	@K8S_OVERLAYS=$${K8S_OVERLAYS:-local} K8S_STEPS=sizes $(TEST) -count 1 -timeout 6h -v -run TestKubernetes ./test/k8s

clean: ## remove what was built
	rm -rf bin

# The tools have a module of their own, outside the workspace: what they need is no concern of the services.
bin/nats: tools/go.mod
	@mkdir -p bin
	cd tools && GOWORK=off go build -o ../bin/nats github.com/nats-io/natscli/nats

bin/staticcheck: tools/go.mod
	@mkdir -p bin
	cd tools && GOWORK=off go build -o ../bin/staticcheck honnef.co/go/tools/cmd/staticcheck
