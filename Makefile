# Evenkeel: everything a person runs by hand. `make` alone lists it.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
EVENKEEL := $(abspath $(TARGET))/release/evenkeel
# Seconds that `make fuzz` spends on each target, and on each elevator.
FUZZ_SECONDS ?= 600
# Cases that it tries in each random test of the schedulers.
FUZZ_CASES ?= 1000000
ELEVATORS := none noop deadline deadline-legacy anticipatory kyber cfq bfq

# Where rustup puts cargo, for shells that do not know it.
export PATH := $(PATH):$(HOME)/.cargo/bin
# The binary that the integration tests and benchmarks start.
export EVENKEEL_BIN := $(EVENKEEL)
export RUST_BACKTRACE ?= 1

.PHONY: help setup build demo test bench bench-kernel bench-performance lint fuzz install agent

help:
	@echo 'make setup    install what is missing: compiler, QEMU, fio, a guest kernel (needs root)'
	@echo 'make demo     boot two guests and compare schedulers; writes target/demo/report.html'
	@echo 'make test     run all tests, those with real guests as well'
	@echo 'make bench    measure the scheduler, the data path and the shares'
	@echo 'make bench-kernel'
	@echo '              the same beside the schedulers of a Linux guest; writes docs/results'
	@echo 'make bench-performance'
	@echo '              the path beside qemu-storage-daemon, isolation, cost; writes docs/results'
	@echo 'make lint     check format, lints and documentation'
	@echo 'make fuzz     fuzz the parser of requests and each scheduler, $(FUZZ_SECONDS) s each, then try'
	@echo '              $(FUZZ_CASES) cases in each random test of the schedulers (hours)'
	@echo 'make install  install evenkeel into ~/.cargo/bin'
	@echo 'make agent    build the agent for guests as one static file'

# Quick and silent when nothing is missing.
setup:
	@scripts/setup.sh

build: agent
	$(CARGO) build --locked --release -p evenkeel

demo: build
	$(EVENKEEL) bench demo

test: build
	$(CARGO) test --locked --workspace
	$(CARGO) test --locked -p evenkeel-sim --features planted --test planted

bench: build
	$(EVENKEEL) bench sched
	$(EVENKEEL) bench fairness
	$(EVENKEEL) bench rate
	$(EVENKEEL) bench shares

bench-kernel: build
	$(EVENKEEL) bench kernel --results docs/results

# On a machine that does nothing else: some 20 minutes.
bench-performance: build
	$(EVENKEEL) bench rate --results docs/results
	$(EVENKEEL) bench isolation --results docs/results
	$(EVENKEEL) bench cost --results docs/results

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked -p evenkeel-sim --features planted --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --workspace --no-deps --document-private-items

# No sanitizer: the fuzzed rooms forbid unsafe code, and a stable compiler has none (fuzz/README.md).
fuzz: setup
	@command -v c++ >/dev/null || { echo 'make fuzz needs a C++ compiler: apt-get install g++' >&2; exit 2; }
	@command -v cargo-fuzz >/dev/null || $(CARGO) install --locked cargo-fuzz
	@set -e; for target in $$($(CARGO) fuzz list | grep -vx elevator); do \
	    echo "fuzz: $$target for $(FUZZ_SECONDS) s"; \
	    $(CARGO) fuzz run --sanitizer none $$target -- -timeout=20 -max_total_time=$(FUZZ_SECONDS); \
	done
	@set -e; for elevator in $(ELEVATORS); do \
	    echo "fuzz: $$elevator for $(FUZZ_SECONDS) s"; \
	    FUZZ_ELEVATOR=$$elevator $(CARGO) fuzz run --sanitizer none elevator \
	        fuzz/corpus/$$elevator -- -timeout=20 -max_total_time=$(FUZZ_SECONDS); \
	done
	EVENKEEL_CASES=$(FUZZ_CASES) $(CARGO) test --locked -p evenkeel-sched

# A static program needs its C library at link time only. Tests and benchmarks run this one, too.
agent: setup
	$(CARGO) rustc --locked --release -p evenkeel-agent -- -C target-feature=+crt-static -C strip=symbols
	@bytes=$$(wc -c <$(TARGET)/release/evenkeel-agent); \
	if [ $$bytes -ge 3000000 ]; then \
	    echo "evenkeel-agent has $$bytes bytes; 3 MB is what a guest should spend" >&2; exit 1; \
	fi

install: setup
	$(CARGO) install --locked --path crates/cli
