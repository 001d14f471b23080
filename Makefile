# The front desk: CMake does the building.
.DEFAULT_GOAL := mnist_ddp
.PHONY: mnist_ddp run test test-all test-torch test-ptx ptx-mutants conformance soak asan tsan format lint bench bench-check \
	gpu-check gpu-bundle gpu-rehearsal install deb clean help packages configure bench-tools

BUILD ?= build
PREFIX ?= /usr/local
CMAKE_FLAGS ?=
# Half cores: tests/CMakeLists.txt says which tests take one, which two.
CTEST_FLAGS ?= -j6
PYTHON ?= python3
SOURCES = $(shell find app base data dist kernels model tests bench/cpu bench/gpu bench/peers \
	-name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.inc')

mnist_ddp: configure ## build build/mnist_ddp and its modules
	@cmake --build $(BUILD) --target mnist_ddp modules

# Without a driver there is no use for the CUDA module, and its build is not waited for.
# MNIST is trained on if it is here or comes soon.
run: configure ## fetch MNIST if it can be had, train with configs/quickstart.yaml: a minute
	@cmake --build $(BUILD) --target mnist_ddp \
		$$(./scripts/has_gpu_driver.sh && echo modules || echo host_modules)
	@$(BUILD)/mnist_ddp data fetch --connect-timeout=5 --stall-timeout=5 >/dev/null || { test $$? -lt 128 && \
		echo "make run: MNIST could not be had; what is here is trained on, else digits that mnist_ddp draws"; }
	$(BUILD)/mnist_ddp train --config configs/quickstart.yaml

# The real CUDA module is nvcc's work of minutes, and without a GPU only its build would be tested.
test: configure ## build and run the tests, but for the long ones (some seven minutes)
	@cmake --build $(BUILD) --target mnist_ddp test_programs \
		$$(./scripts/has_gpu_driver.sh && echo modules || echo host_modules)
	@cd $(BUILD) && ctest --output-on-failure -LE long $(CTEST_FLAGS)

test-all: configure ## build everything and run all tests
	@cmake --build $(BUILD)
	@cd $(BUILD) && ctest --output-on-failure $(CTEST_FLAGS)

# By name: what has a PyTorch, or its TensorBoard, beside it.
test-torch: configure ## the tests that need PyTorch (makes a venv of its own, several GB)
	@./scripts/torch_venv.sh bench/venv
	@cmake --build $(BUILD)
	@cd $(BUILD) && TORCH_PYTHON=$(CURDIR)/bench/venv/bin/python ctest --output-on-failure -R "torch|tensorboard"

test-ptx: configure ## the kernels' PTX for three architectures, executed (minutes; no GPU)
	@cmake --build $(BUILD) --target test_programs
	@BUILD_DIR=$(BUILD) $(PYTHON) -B tests/ptx/run.py || test $$? -eq 77

ptx-mutants: configure ## break the kernels in one place each, and see test-ptx notice (minutes)
	@cmake --build $(BUILD) --target test_programs
	@BUILD_DIR=$(BUILD) $(PYTHON) -B tests/ptx/mutants.py

conformance: configure ## every operation on every backend, as a table (some minutes)
	@cmake --build $(BUILD) --target conformance modules
	@cd $(BUILD) && BUILD_DIR=$$PWD ./conformance --whole

soak: configure ## kill 1,000 ranks and 250 launchers at random instants, compare bits; 100 schedules of faults; the package (an hour)
	@cmake --build $(BUILD)
	@cd $(BUILD) && BUILD_DIR=$$PWD && SOURCE_DIR=$(CURDIR) && \
		MNIST_DDP_SOAK_KILLS=$$(($${MNIST_DDP_SOAK_KILLS:-1000} / 2)) && \
		export BUILD_DIR SOURCE_DIR MNIST_DDP_SOAK_KILLS && \
		./test_app restarts && { ./test_app restarts --backend=gloo || test $$? -eq 77; }
	@cd $(BUILD) && BUILD_DIR=$$PWD SOURCE_DIR=$(CURDIR) ELASTIC_SCHEDULES=100 ELASTIC_SEED=0 \
		$(CURDIR)/tests/app/test_elastic_hosts.sh || test $$? -eq 77
	@$(MAKE) deb && tests/debian_package.sh $(BUILD) || test $$? -eq 77

asan: packages ## all tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@cmake --preset asan $(CMAKE_FLAGS) >/dev/null
	@cmake --build build-asan
	@cd build-asan && ctest --output-on-failure $(CTEST_FLAGS)

tsan: packages ## most tests under ThreadSanitizer (slow)
	@cmake --preset tsan $(CMAKE_FLAGS) >/dev/null
	@cmake --build build-tsan
	@cd build-tsan && ctest --output-on-failure $(CTEST_FLAGS)

format: ## lay out all sources with clang-format
	@./scripts/install_packages.sh clang-format
	@clang-format -i $(SOURCES)

lint: ## layout, shell scripts, and a build with clang, warnings as errors
	@./scripts/install_packages.sh clang clang-format shellcheck
	@clang-format --dry-run -Werror $(SOURCES)
	shellcheck scripts/*.sh tests/*.sh tests/*/*.sh bench/gpu/*.sh configs/cluster/*.sbatch .ci/run
	@cmake --preset clang $(CMAKE_FLAGS) >/dev/null
	@cmake --build build-clang

bench: bench-tools ## beside PyTorch, JAX and Open MPI, interleaved (QUICK=1: a look; ROWS=...)
	@BUILD=$(BUILD) bench/venv/bin/python bench/cpu/bench.py

bench-check: bench-tools ## the same ratios held to those of bench/results for this processor
	@BUILD=$(BUILD) bench/venv/bin/python bench/cpu/bench.py check

gpu-check: ## build, test, train and measure on this machine's GPU (QUICK=1, STAGES=...: docs/gpu.md)
	@$(PYTHON) bench/gpu/check.py

gpu-bundle: ## gpu-bundle/: what gpu-check needs on a machine without a network
	@./scripts/gpu_bundle.sh

gpu-rehearsal: configure ## gpu-check on what looks like a machine with a GPU (needs root; long)
	@cmake --build $(BUILD) --target mnist_ddp_cuda_emulated
	@BUILD=$(BUILD) bench/gpu/rehearse.sh $(STAGES)

install: mnist_ddp ## copy the program and its modules to $(PREFIX)
	@cmake --install $(BUILD) --prefix $(PREFIX)

deb: mnist_ddp ## Debian packages, in $(BUILD)/deb: mnist-ddp, and mnist-ddp-cuda if CUDA is here
	@./scripts/make_deb.sh $(BUILD)

clean: ## remove all build folders
	rm -rf build build-*

help: ## this list
	@sed -n 's/^\([a-z_-]*\):[^#]*## /\1|/p' Makefile | awk -F'|' '{printf "  make %-13s %s\n", $$1, $$2}'

# Without Open MPI the rows that have it beside them go without.
bench-tools: mnist_ddp
	@cmake --build $(BUILD) --target cpu_peak
	@./scripts/torch_venv.sh bench/venv
	@./scripts/install_packages.sh openmpi-bin libopenmpi-dev || true

packages:
	@./scripts/install_packages.sh

configure: packages
	@cmake --preset default -B $(BUILD) $(CMAKE_FLAGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }
	@grep 'left out' $(BUILD).log || true
	@mv $(BUILD).log $(BUILD)/configure.log
