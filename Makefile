# One word each. `make test` and `make demo` start from nothing but Python, Node.js and a C++ compiler.

VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet --quiet
export PATH := $(CURDIR)/$(BIN):$(PATH)

TOOLS := $(VENV)/.tools
INSTALLED := $(VENV)/.installed
MODULES := labextension/node_modules/.yarn-state.yml
BUILT_FROM := pyproject.toml jupyter_gpushare/_version.py $(wildcard server_ext/*.json) \
  $(shell find csrc labextension -not -path '*/node_modules*' -not -path '*/lib/*' \
    -not -path '*/.yarn/*' -type f -not -name '*.md')
CXX_FILES := $(shell find csrc tests/cpp tests/stand_ins benchmarks -name third_party -prune -o -name '*.h' -print -o -name '*.cpp' -print)
STRICT := GPUSHARE_WERROR
# Those that drive the C++ module, with what its threads meet in a session.
SANITIZED_TESTS := tests/unit/core tests/unit/memory tests/unit/torch tests/unit/session/test_session.py \
  tests/unit/session/test_interrupts.py tests/models/test_orders.py tests/models/fuzz/test_found.py
# Each process has a file of tests at a time, in their order.
AT_A_TIME := --dist loadfile --no-loadscope-reorder --numprocesses
TWO_AT_A_TIME := $(AT_A_TIME) 2
WITH_SYSTEM := -m 'not thorough'
# Searches by Hypothesis, which draw other examples in each `make faults`.
SEARCHES := tests/models tests/unit/core tests/unit/broker/lanes/test_gang_sessions.py tests/unit/cluster/test_jobs.py
# The C++ tests that the thread sanitizer has in `make test`; in `make faults` it has all.
THREADED := *thread*
THREADED_PARTS := memory cuda handoff
# A CUDA build of PyTorch in a virtual environment of its own, which finds all else in VENV.
CUDA_TORCH ?= 2.11.0
CUDA_VENV := .venv-cuda
CUDA_PIP := $(CUDA_VENV)/bin/pip --disable-pip-version-check --quiet --quiet install --no-deps
CUDA_INSTALLED := $(CUDA_VENV)/.torch-$(CUDA_TORCH)
CUDA_LIBRARIES := build/cuda/libraries
CUDA_TESTS := tests/system/cuda tests/system/gpu
# The part of it that every change gets, in .ci/run as well: with work done late, which finds more than
# work done at once. `make faults` has the rest.
CUDA_QUICK := tests/system/cuda/test_iterations.py tests/system/cuda/test_lanes.py tests/system/cuda/test_sessions.py \
  tests/system/gpu/test_lane.py 'tests/system/gpu/test_training.py::test_training_comes_to_the_same[cnn]' \
  -k 'not eager and not transformer and not a_thousand_iterations and not statistics_of and not steady_loop \
  and not persistent_is and not what_persists_keeps and not expandable_segments_are'
CUDA_MADE := $(CUDA_LIBRARIES)/nvml
FAKE_UUID := GPU-01010101-0101-0101-0101-010101010101
# With DEVICE=cuda the demo has the GPU of this machine, or where there is none, one that is main memory.
ON_FAKE_GPU := $(if $(filter cuda,$(DEVICE)),$(if $(wildcard /dev/nvidiactl),,FAKE_CUDA_HOST=$$$$ tests/system/cuda/run))
RELEASE := $(CURDIR)/.venv-release
VERSION = $(shell sed -n 's/^__version__ = //p' jupyter_gpushare/_version.py)
RELEASE_TOOLS := $(RELEASE)/.tools
PYTHON_OF_VENV = "$$($(BIN)/python -c 'import sys; print(sys._base_executable)')"
SITE = $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
ROOT_MAY := $(if $(filter 0,$(shell id -u)),--allow-root)

.PHONY: help build demo hub cluster lab test test-system test-again test-bindings sanitizers test-cpp test-cuda test-cuda-quick rehearse-gpu test-frontend test-python faults load \
  audit check check-python check-cpp check-frontend format bench bench-quick evidence reference docs wheels release committed \
  clean

help:  ## show these lines
	@sed -n 's/^\([a-z-]*\):.*##/\1\t/p' $(MAKEFILE_LIST) | expand -t 16

build: $(INSTALLED)  ## make the virtual environment, build C++ and front end, install both editable

$(TOOLS): requirements-dev.txt
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(PIP) install --constraint requirements-dev.txt torch
	$(PIP) install --requirement requirements-dev.txt
	touch $@

$(INSTALLED): $(TOOLS) $(BUILT_FROM)
	$(PIP) install --no-build-isolation --config-settings=cmake.define.$(STRICT)=ON --editable .
	touch $@

$(RELEASE_TOOLS): deploy/wheels/requirements.txt
	python3 -m venv --clear $(RELEASE)
	$(RELEASE)/bin/pip --disable-pip-version-check --quiet --quiet install --requirement $<
	touch $@

$(MODULES): $(TOOLS) labextension/package.json labextension/yarn.lock
	cd labextension && jlpm install --immutable
	touch $@

demo: $(INSTALLED) $(if $(ON_FAKE_GPU),$(CUDA_MADE))  ## three real notebooks share one device; DEVICE=cuda: a GPU, real or fake
	$(or $(ON_FAKE_GPU),$(BIN)/python) examples/demo.py $(if $(filter cuda,$(DEVICE)),--needs-gpu)

hub: $(INSTALLED) $(MODULES)  ## a JupyterHub with a class on this machine; no GPU needed
	$(BIN)/python examples/hub/start.py

cluster: $(INSTALLED) $(MODULES)  ## a Slurm of three nodes and a JupyterLab on this machine; no GPU needed
	$(BIN)/python examples/cluster/lab.py

lab: $(INSTALLED)  ## open JupyterLab on the examples
	$(BIN)/jupyter lab $(ROOT_MAY) examples

test: $(INSTALLED) $(MODULES)  ## four minutes: units, contracts, and one path through each whole system
	$(MAKE) --jobs 2 test-frontend test-python

test-system: $(INSTALLED) $(MODULES)  ## what else a change may break; ROOM=unit/broker: of these folders of tests alone
	$(if $(ROOM),,$(MAKE) test-cpp)
	MAKEFLAGS= $(BIN)/pytest $(TWO_AT_A_TIME) -m 'system and not thorough' $(addprefix tests/,$(ROOM))

test-again: $(INSTALLED) $(MODULES)  ## the tests of `make test` N times with both cores busy: which fail, and how often
	MAKEFLAGS= $(BIN)/python -m tests.again $(or $(N),20) $(AT_A_TIME) 4

sanitizers: $(TOOLS)  ## compile the C++ tests with the sanitizers that test-cpp runs them under
	cmake -S csrc -B build/sanitize-address -G Ninja -DGPUSHARE_TESTS=ON -D$(STRICT)=ON \
	  -DGPUSHARE_SANITIZE=address,undefined
	MAKEFLAGS= nice cmake --build build/sanitize-address
	cmake -S csrc -B build/sanitize-thread -G Ninja -DGPUSHARE_TESTS=ON -D$(STRICT)=ON \
	  -DGPUSHARE_SANITIZE=thread
	MAKEFLAGS= nice cmake --build build/sanitize-thread --target $(THREADED_PARTS:=_test)

test-cpp: sanitizers  ## the C++ tests under the address, undefined-behaviour and thread sanitizers
	ctest --test-dir build/sanitize-address --output-on-failure --parallel 2
	for part in $(THREADED_PARTS); do \
	  build/sanitize-thread/tests/$${part}_test --test-case='$(THREADED)' || exit; \
	done

test-bindings: $(INSTALLED)  ## what Python calls of the C++, under the same sanitizers
	for kind in address,undefined thread; do \
	  build=build/sanitize-$${kind%%,*}; \
	  cmake -S csrc -B $$build -G Ninja -DGPUSHARE_TESTS=ON -D$(STRICT)=ON \
	    -DGPUSHARE_SANITIZE=$$kind -Dpybind11_DIR=$$(python -m pybind11 --cmakedir) && \
	  cmake --build $$build --target _core _core_testing && \
	  $(BIN)/python -m tests.sanitized $$kind $$build $(SANITIZED_TESTS) \
	    $(WITH_SYSTEM) --timeout 600 || exit; \
	done

test-frontend: $(MODULES)  ## the unit tests of the front end
	cd labextension && jlpm test

test-python: $(INSTALLED) $(MODULES)  ## pytest: kernels, servers, sockets, browser
	MAKEFLAGS= $(BIN)/pytest $(TWO_AT_A_TIME)

test-cuda: $(INSTALLED) $(CUDA_MADE)  ## lanes under PyTorch's own CUDA allocator, on a GPU that is main memory
	tests/system/cuda/run -m pytest --timeout 1000 $(CUDA_TESTS)

test-cuda-quick: $(INSTALLED) $(CUDA_MADE)  ## the part of it that takes minutes
	tests/system/cuda/run -m pytest --timeout 1000 $(CUDA_QUICK)

rehearse-gpu: $(INSTALLED) $(CUDA_MADE)  ## benchmarks/gpu.sh from beginning to end on the fake GPU; no figure counts
	PYTHON=tests/system/cuda/run benchmarks/gpu.sh --rehearse

# Without what PyTorch wants: libraries of NVIDIA's must not be there.
$(CUDA_INSTALLED): $(TOOLS) tests/system/cuda/headers.txt tests/stand_ins/cuda/hook.py
	$(BIN)/python -m venv --clear $(CUDA_VENV)
	$(CUDA_PIP) torch==$(CUDA_TORCH)
	$(CUDA_PIP) --upgrade --target build/cuda/headers --requirement tests/system/cuda/headers.txt
	cp tests/stand_ins/cuda/hook.py $(call SITE,$(CUDA_VENV))/fake_gpu_hook.py
	ln -s ../$(VENV)/etc ../$(VENV)/share $(CUDA_VENV)  # where Jupyter finds extensions and kernels
	echo "import site; site.addsitedir('$(call SITE,$(VENV))'); import fake_gpu_hook" \
	  > $(call SITE,$(CUDA_VENV))/fake_gpu.pth
	touch $@

$(CUDA_MADE): $(CUDA_INSTALLED) $(wildcard tests/stand_ins/driver/* tests/stand_ins/cuda/*) csrc/memory/cuda/cuda_driver.h
	$(BIN)/python tests/stand_ins/cuda/make.py $(call SITE,$(CUDA_VENV))/torch build/cuda/headers $(CUDA_LIBRARIES)
	echo "gpu $(FAKE_UUID) $$((4 << 30)) 0 NVIDIA L4" > $@

faults: $(INSTALLED)  ## hours: every test in all its kinds; break what can break: docs/results/reliability.md
	$(BIN)/pytest $(WITH_SYSTEM) tests/system/faults --reliability docs/results/reliability.md
	$(BIN)/pytest $(TWO_AT_A_TIME) -m thorough --hypothesis-profile=faults
	$(BIN)/pytest $(TWO_AT_A_TIME) $(WITH_SYSTEM) --squeeze-to-floor tests/unit/torch tests/unit/session tests/system/kernel
	$(BIN)/pytest $(WITH_SYSTEM) tests/models/fuzz --fuzz-seconds 600
	$(BIN)/pytest $(WITH_SYSTEM) $(SEARCHES) --hypothesis-profile=faults
	GPUSHARE_TEST_PATHS=10 $(MAKE) test-cpp THREADED='*' THREADED_PARTS='core simulation memory cuda handoff'
	$(MAKE) test-bindings
	$(MAKE) test-cuda

load: $(INSTALLED)  ## a busy host for half an hour: docs/results/load.md
	$(BIN)/python benchmarks load

audit: $(INSTALLED) $(MODULES)  ## whether dependencies fit together, and whether a hole in them is known
	$(BIN)/pip check
	test -x $(BIN)/pip-audit || $(PIP) install pip-audit
	$(BIN)/pip-audit --skip-editable
	cd labextension && jlpm npm audit --recursive --environment production

check: check-python check-cpp check-frontend  ## formatters and linters of all three languages, types

check-python: $(INSTALLED)
	ruff check .
	ruff format --check .
	mypy
	mypy examples benchmarks docs labextension/build.py deploy/wheels/matrix.py

check-cpp: $(TOOLS)
	clang-format --dry-run -Werror $(CXX_FILES)

check-frontend: $(MODULES)
	cd labextension && jlpm lint:check

format: $(TOOLS) $(MODULES)  ## rewrite every file as the formatters want it
	ruff check --fix .
	ruff format .
	clang-format -i $(CXX_FILES)
	cd labextension && jlpm prettier && jlpm eslint && jlpm stylelint

bench: $(INSTALLED)  ## every promised figure, measured; results in build/bench.json
	$(BIN)/python benchmarks

bench-quick: $(INSTALLED)  ## three minutes: whether context switch, boundary, lane or decision is slower than COMMIT has it, or main
	$(BIN)/python benchmarks quick $(COMMIT)

evidence: $(INSTALLED)  ## published figures in virtual time, and what people use beside us: docs/results/evidence.md
	$(BIN)/python benchmarks evidence

reference: $(INSTALLED)  ## docs/reference, written from the code
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/stubs.py

docs: $(TOOLS)  ## the site of the documents, in build/site; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheels release: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)

wheels: $(INSTALLED) $(RELEASE_TOOLS)  ## in dist: the source, and a wheel for this Python, tried without compiler and Node.js
	rm -rf dist build/wheels
	$(BIN)/python -c 'from scikit_build_core import build; build.build_sdist("dist")'
	CXX=$(CURDIR)/deploy/wheels/zig-cxx $(PIP) wheel --no-build-isolation --no-deps --wheel-dir build/wheels dist/*.tar.gz
	PATH=$(RELEASE)/bin:$$PATH auditwheel repair --wheel-dir dist build/wheels/*.whl
	deploy/wheels/try.sh dist/*.whl $(PYTHON_OF_VENV)

# The source has all files that git does not ignore.
committed:
	@test -z "$$(git status --porcelain)" || { echo "commit these first:"; git status --short; exit 1; }

release: committed wheels  ## a rehearsal: checks them, and adds a bill of materials and checksums; uploads nothing
	$(RELEASE)/bin/twine check --strict dist/*.tar.gz dist/*.whl
	$(BIN)/python -m venv --clear --without-pip build/release
	$(PIP) --python build/release install dist/*.whl
	sed 's/^dynamic = .*/version = $(VERSION)/' pyproject.toml > build/release/pyproject.toml
	$(RELEASE)/bin/cyclonedx-py environment --pyproject build/release/pyproject.toml --mc-type library \
	  --output-reproducible --output-file dist/bom.cdx.json build/release/bin/python
	cd dist && sha256sum * > SHA256SUMS

clean:  ## remove what was built; the virtual environment stays
	rm -rf build dist jupyter_gpushare/labextension jupyter_gpushare/static labextension/lib $(INSTALLED)
