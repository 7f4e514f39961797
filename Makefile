# SPDX-License-Identifier: MIT
#
# The commands of Skua. Each sets up what it needs: `make help`.

SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# release or debug (KASAN, lockdep, kmemleak, …)
KERNEL ?= release
# The user's own kernel tree and QEMU, and what `make run` and `make test` are told.
KDIR ?=
QEMU ?=
IMAGE ?=
FILTER ?=
RADIUS ?=
VRAM ?=
T ?=
# 1: `make run` records what driver and device do; and which program `make trace` runs.
TRACE ?=
PROGRAM ?=
# What the GPU of `make shell` is told: --vram-size 256M, …
GPU ?=
# 1: let a debugger into the guest (`make gdb`); wait: the guest waits for it.
GDB ?=
# How often `make points` preempts work.
POINTS ?= 100000
# Seconds for each target of `make fuzz`.
FUZZ_TIME ?= 600

export KERNEL
export KDIR := $(if $(KDIR),$(abspath $(KDIR)))
export QEMU := $(if $(QEMU),$(abspath $(QEMU)))
# As they are, whatever is in them: recipes and scripts take them from the environment.
$(foreach name,IMAGE FILTER RADIUS VRAM T PROGRAM GPU GDB,\
	$(eval override export $(name) := $$(value $(name))))

# Switches: 1, or 0 for off. An environment may have another HOST.
$(foreach name,TRACE EVICT QUICK HOST,$(if $(filter-out 1,$($(name))),\
	$(if $(and $(filter-out 0,$($(name))),$(filter command,$(origin $(name)))),\
		$(error $(name)=$($(name)): 1, or 0))$(eval override $(name) :=)))
$(if $(QEMU),$(if $(realpath $(QEMU)),,$(error QEMU=$(QEMU): there is no such file)))

SANDBOX := scripts/sandbox
VM := out/cargo/debug/skua-vm
PRODUCTS = out/guest/$(KERNEL)
# How many times longer than usual anything in a guest may take.
PATIENCE = $(if $(filter debug,$(KERNEL)),6,1)
# What every guest is made from, once scripts/kernel has said where.
MACHINE = --kernel "$$BUILD/arch/x86/boot/bzImage" $(if $(ACCEL),--accel $(ACCEL)) \
	$(if $(QEMU),--qemu "/host$(realpath $(QEMU))")
PARTS = $(MACHINE) --products $(PRODUCTS) --patience $(PATIENCE) $(if $(GDB),--gdb "$$GDB")
# In the sandbox, with the trees of $(KERNEL).
IN = set -a; . out/kernel/$(KERNEL).env; set +a; exec $(SANDBOX)

.PHONY: help setup kernel module gpu tools guest picture run trace test points shell gdb bench \
	rust-analyzer docs fmt lint fuzz conformance browser mutants prune clean distclean
# Builds lock one another out anyway, and what is checked first is to come first.
.NOTPARALLEL:

help: ## this list
	@printf 'Skua: an emulated PCI GPU and its DRM driver. make …\n\n'
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@printf '\n%s  %s\n' \
		'Options: KERNEL=release|debug  KDIR=your kernel tree  QEMU=your QEMU  ACCEL=tcg|auto' \
		'GDB=1|wait  EVICT=1  QUICK=1  FUZZ_TIME=seconds'
	@printf 'Cache: SKUA_CACHE, now %s\n' \
		"$${SKUA_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/skua}"

setup: ## fetch every tool into the cache, once
	@scripts/sysroot

kernel: ## build the guest's kernel into the cache, once for each configuration
	@scripts/kernel $(KERNEL)

module: kernel ## build the driver: out/module/release/skua.ko
	@scripts/build module

gpu: setup ## build the GPU server: out/cargo/debug/skua-gpu
	@$(SANDBOX) cargo build --workspace --locked --bin skua-gpu

tools: kernel ## build every program: out/cargo/debug
	@scripts/build tools

guest: kernel
	@scripts/build guest

picture:
	@scripts/picture
	@scripts/kernel $(KERNEL)
	@scripts/build picture

run: PRODUCTS = out/picture/$(KERNEL)
run: picture ## process an image on the GPU: [IMAGE=photo.jpg] [FILTER=edge|blur|…] [RADIUS=n] [VRAM=16M] [TRACE=1]
	@$(IN) $(VM) run $(PARTS) \
		$(if $(IMAGE),--image out/run/log/image --name="$$(basename -- "$$IMAGE")") \
		$(if $(FILTER),--filter "$$FILTER") $(if $(RADIUS),--radius "$$RADIUS") \
		$(if $(VRAM),--vram "$$VRAM") $(if $(TRACE),--trace)

trace: guest ## run a program and show what driver and device did: PROGRAM=schedule [T=pattern]
	@$(IN) $(VM) trace $(PARTS) --program="$$PROGRAM" --pattern="$$T"

# The host's tests have no kernel and no evictor: once is enough. A pattern wants fuzz targets,
# which take minutes to build, if it says so, and skua-vm then runs them.
test: guest ## run every test, or with T=pattern those whose name contains it
ifeq ($(KERNEL)$(EVICT),release)
	$(if $(T),$(if $(findstring fuzz,$(T)),@scripts/build fuzz),@scripts/build fuzz)
	@$(IN) $(VM) test $(PARTS) --pattern="$$T"
else
	@$(IN) $(VM) test $(PARTS) $(if $(EVICT),--evict) --pattern="$$T" --no-host \
		--report out/test-$(KERNEL)$(if $(EVICT),-evict)
endif

points: PATIENCE = 30
points: guest ## preempt work and take memory from under mappings 100,000 times, half an hour: [POINTS=n]
	@for test in schedule.row_2_13_each_unit_of_work_runs_once \
			aperture.row_0_23_mappings_go_before_a_page_is_anothers; do \
		$(IN) $(VM) test $(PARTS) --pattern=$$test --no-host --points $(POINTS) \
			--report out/points/$${test%%.*} || exit; \
	done

# What was changed is to be there soon.
shell: export QUICK ?= 1
shell: guest ## an interactive guest with the driver loaded: [GPU='--vram-size 256M']
	@$(IN) $(VM) shell $(PARTS) --size $$(stty size 2>/dev/null || echo 24 80) $(if $(GPU),-- $$GPU)

gdb: kernel ## debug the kernel of a guest that runs with GDB=1
	@$(IN) gdb -q -x out/gdb

bench: guest ## the measures, counted in guest instructions: out/bench.json
	@$(IN) $(VM) bench $(PARTS)

# What cargo fmt does not find: it is no crate, or one of another workspace.
OTHER_RUST := drivers/gpu/drm/skua/skua_main.rs qemu/fuzz/src/bin/*.rs

rust-analyzer: kernel ## rust-project.json: an IDE sees driver, kernel and programs
	@scripts/build analyzer

docs: kernel ## the manual and the libraries' documentation: out/docs/index.html
	@scripts/build docs

fmt: setup ## format the sources
	@$(SANDBOX) cargo fmt --all
	@$(SANDBOX) rustfmt $(OTHER_RUST)

lint: kernel ## check formatting, clippy, C style, scripts, and that the tables name what exists
	@$(SANDBOX) cargo fmt --all --check
	@$(SANDBOX) rustfmt --check $(OTHER_RUST)
	@$(SANDBOX) cargo clippy --workspace --all-targets --locked -- -D warnings
	@scripts/build lint
	@$(SANDBOX) cargo test --quiet --locked --package skua-conformance --package skua-mutants
	@$(SANDBOX) shellcheck -x -P . $$(grep -rlE '^(#!/bin/(ba)?sh|# shellcheck shell=)' scripts .ci)

fuzz: tools ## run every fuzz target for FUZZ_TIME seconds: out/fuzz
	@scripts/build fuzz
	@$(IN) $(VM) fuzz --seconds $(FUZZ_TIME) --pattern="$$T"

conformance: setup ## check Documentation/gpu/skua/conformance.rst against the last test report
	@$(SANDBOX) cargo build --quiet --workspace --locked --bin skua-conformance
	@$(SANDBOX) out/cargo/debug/skua-conformance

browser: guest ## record a run, and open its page and another in a real browser, fetched for this alone
	@$(IN) $(VM) trace $(PARTS) --program=first --output=out/browser/first
	@scripts/page-test

# Not in CI: each mutant is a build and a boot.
mutants: guest ## break each rule of mutants.toml in a copy, and see its test fail: [T=pattern] [HOST=1]
	@$(IN) out/cargo/debug/skua-mutants $(if $(HOST),host --pattern="$$T",table --kernel $(KERNEL) \
		--patience $(PATIENCE) --pattern="$$T" -- $(MACHINE))

prune: ## remove old entries of the cache, and say of each why and how large it was
	@scripts/prune

clean: ## remove what was built here; the cache stays
	rm -rf out rust-project.json

distclean: clean ## remove the cache too: shared by all checkouts
	rm -rf "$${SKUA_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/skua}"
