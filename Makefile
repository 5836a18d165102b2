# The recipes of this repository; people, .ci/run and the workflows call the same ones.
#
#   make demo    assemble photographs, text and sound; check and time against NumPy and torch
#   make test    all tests but the slow ones: test-host, test-device and test-python
#   make lint    format, clippy, docs, spelling, commit messages, oldest supported compiler, workflows
#   make bench   criterion benches, then torch, NumPy, DALI and others beside windrow: out/bench/
#
#   make test-host      Rust tests of the host engine, the C interface and the documentation
#   make test-device    the CUDA engine without a GPU: test-simulated and test-device-code
#   make test-python    type checks, Python tests
#   make test-slow      what make test leaves out: test-processes (Python tests that start processes), and all of Python's by official calls
#   make test-package   the wheel in a fresh environment, the source distribution, the crates
#   make test-short     the demo, examples, site, bundle and what is run less often, each in its shortest form
#   make bench-check    fails if the instructions of fixed inputs rose by more than 5 % (valgrind)
#
#   make test-simulated    the CUDA engine on a simulated driver, whose kernels are compiled for the host
#   make test-device-code  the kernels' machine code, executed: shared suites, counts against benches/device-instructions.json
#   make gpu-model  what each workload should take on a GPU, and which of it is counted and which assumed
#   make gpu-check  build out/gpu-check.tar.gz for a machine with a GPU; run its queue if this is one
#   make wait-mutants  each wait of the CUDA engine left out: the tests have to notice
#   make wheels  every wheel of a release and the source distribution, each checked: out/wheels/
#
# What is run less often is a script; scripts/README.md has a line for each.
#
# Needed: a Rust toolchain, Python 3.9 or newer with venv, make. Everything of Python goes to .venv,
# nvcc included.

PYTHON ?= python3
CARGO ?= cargo
VENV ?= .venv

PY := $(VENV)/bin/python
# Images of containers set it; then each of the processes that tests start would compile all of torch, in twice the time of its import.
unexport PYTHONDONTWRITEBYTECODE
# Compiled when it is imported: torch, JAX and Ray would take a minute, most of it for modules that nothing here imports.
PIP := $(PY) -m pip install --disable-pip-version-check --no-compile
# What a recipe of the CUDA engine needs and begins with, on the platforms that have one.
ifneq (,$(filter Linux-x86_64 Linux-aarch64,$(shell uname -sm | tr ' ' -)))
NVCC_READY := $(VENV)/.cuda
# Not among the packages of the environment: torch's put headers of another release into the same folder.
WITH_NVCC := CUDA_HOME=$${CUDA_HOME:-$(abspath $(VENV))/nvcc/nvidia/cu13} WINDROW_KERNEL_CACHE=$(CURDIR)/target/kernels
WHEEL_NVCC := $(WITH_NVCC)
# A stand-in for the driver, so that the tests of devices run without one; one that is set is used.
TEST_DRIVER = WINDROW_CUDA_DRIVER=$${WINDROW_CUDA_DRIVER:-$$($(WITH_NVCC) CARGO=$(CARGO) scripts/sim/simulated_driver.sh)}
# All Rust tests, of the host too: an alias of .cargo/config.toml, so that nothing is compiled twice.
CARGO_TEST = $(WITH_NVCC) $(CARGO) test-all
else
WITH_NVCC := @echo "SKIP: no CUDA engine on this platform:"
CARGO_TEST = $(CARGO) test --locked -p windrow -p windrow-capi --features windrow/tracing
endif
SOURCES := Cargo.toml Cargo.lock python/Cargo.toml python/pyproject.toml $(shell find src python/src \
	python/python kernels build build.rs -name '*.rs' -o -name '*.cu*' -o -name '*.py' -o -name '*.pyi' -o -name py.typed)

# What the longest step of a first build does; cargo prints nothing meanwhile.
ANNOUNCE_KERNELS = echo "Building the wheel: about two minutes on two cores." && ls target/kernels/*.fatbin >/dev/null 2>&1 || \
	echo "The CUDA kernels take two to ten more, once, with or without a GPU here: nvcc compiles them for sm_80, 90, 100 and 120." \
		"WINDROW_CUDA_ARCHS=90 is for one of these alone."

# Packages that not every platform has a wheel for: without one the rest still runs.
optional = $(PIP) --quiet --only-binary :all: $(1) || echo "$(1) did not install: $(2)"
# The packages of a file; one that has no wheel does not keep the others from being installed.
optionals = $(PIP) --quiet --only-binary :all: -r $(1) || sed '/^ *\(\#\|$$\)/d' $(1) | while read -r package; do \
	$(call optional,"$$package",$(2)); done

.PHONY: demo test announce-test test-host test-device test-simulated test-device-code test-python test-slow test-processes \
	test-package test-short lint bench bench-check gpu-model gpu-check wait-mutants wheels
.NOTPARALLEL:

demo: $(VENV)/.demo $(VENV)/.windrow
	$(PY) -m windrow demo

test: announce-test test-host test-device test-python

announce-test:
	@echo "make test: test-host, test-device, test-python; 14 to 31 minutes on two cores after make demo, longer before it."
	@echo "Left out: make test-slow (processes, whole programs), test-package, test-short, lint. Nothing needs a GPU."

# Without a driver, so that every test of a device says SKIP: those are of test-simulated.
HOST_TESTS := $(patsubst %,--test %,suite corpus sweep_memory tracing header hostile log quantize)
test-host: $(NVCC_READY)
	WINDROW_CUDA_DRIVER=none $(CARGO_TEST) --lib $(HOST_TESTS) --bench host --examples
	$(CARGO_TEST) --doc
	$(WHEEL_NVCC) CARGO=$(CARGO) scripts/ci/capi_examples.sh

test-device: test-simulated test-device-code

# Without a GPU: on the simulated driver, which crates/cudasim builds.
ifneq (,$(NVCC_READY))
# A simulated device has one thread, which all tests of a process wait for: half of them are run by another process.
DEVICE_ALONE = casts:: properties:: sizes::
GATHER = $(CARGO_TEST) --bench gather -- --bench --quick
test-simulated: $(NVCC_READY)
	$(WITH_NVCC) CARGO=$(CARGO) scripts/sim/device_code.py --compile 90 >/dev/null & # for test-device-code, which would wait for one thread
	driver=$$($(WITH_NVCC) CARGO=$(CARGO) scripts/sim/simulated_driver.sh) && \
		export WINDROW_CUDA_DRIVER=$$driver CUDASIM_DELAY_US=0 WINDROW_REQUIRE_GPU=1 WINDROW_TEST_ENGINES=device && \
		$(CARGO_TEST) --no-run --lib --tests && \
		{ $(CARGO_TEST) --lib --tests -- $(DEVICE_ALONE) & others=$$!; \
			$(CARGO_TEST) --lib --tests -- $(patsubst %,--skip %,$(DEVICE_ALONE)); status=$$?; wait $$others && test $$status = 0; } && \
		$(CARGO_TEST) --bench instructions && mkdir -p out && \
		WINDROW_TEST_ALLOCATIONS=shared $(CARGO_TEST) --test suite -- small:: arena:: && \
		$(GATHER) --warm --json $(CURDIR)/out/gather-quick.json >out/gather-quick.txt && \
		$(PYTHON) scripts/gpu/plots.py --simulated --figures bench=out/gather-quick.json && \
		$(GATHER) --budget 0 | grep "^No time was left of 0 s" && \
		$(GATHER) --only small --only W3: --budget 60 --trials scripts/gpu/runner/trials.txt --table out/gather-trials.tsv >out/gather-trials.txt && \
		grep -c "^short-2k" out/gather-trials.tsv | grep -qx 2
	$(WITH_NVCC) CARGO=$(CARGO) scripts/sim/kernel_report.py --check
else
test-simulated:
	@echo "SKIP: no CUDA engine on this platform"
endif

# ARCHS: others than sm_90, such as ARCHS="80 100 120". DEVICE_CODE_FLAGS: more options of the script, such as --suite channels.
test-device-code: $(NVCC_READY)
	$(WITH_NVCC) CARGO=$(CARGO) scripts/sim/test_device_code.py $(patsubst %,--arch %,$(ARCHS)) $(DEVICE_CODE_FLAGS)

gpu-model:
	$(PYTHON) scripts/sim/gpu_model.py --check

# Beside mypy: each checker takes one core.
STUBS_AND_PYRIGHT = { $(PY) -m mypy.stubtest --allowlist python/stubtest.allow windrow._windrow windrow.spec && \
	if $(PY) -m pyright --version >/dev/null 2>&1; then $(PY) -m pyright --pythonpath $(PY) -p python/tests/pyrightconfig.json && \
	$(PY) -m pyright --pythonpath $(PY) -p examples/pyrightconfig.json; \
	else echo "SKIP pyright: it did not install"; fi; }

test-python: $(VENV)/.test $(VENV)/.windrow
	$(STUBS_AND_PYRIGHT) & others=$$!; \
		$(PY) -m mypy --config-file python/pyproject.toml python/python/windrow && \
		$(PY) -m mypy --config-file examples/mypy.ini python/tests/typed_program.py examples/*.py examples/recipes/*.py; \
		mypy=$$?; wait $$others && exit $$mypy
	$(TEST_DRIVER) $(PY) -m pytest -rs -n 2 --dist loadfile -m "not slow and not alone" python/tests
	$(BY_OFFICIAL_CALLS) -n 2 -m "not slow and not alone" $(READING)

# Once more without the readers of private layouts, whose results are those of the official calls: imports, trees and lists here,
# less than a minute on two quiet cores, and all tests in test-slow, some 5 minutes.
BY_OFFICIAL_CALLS = WINDROW_PRIVATE_LAYOUTS=0 $(TEST_DRIVER) $(PY) -m pytest --dist loadfile
READING := $(patsubst %,python/tests/test_%.py,collate columns containers cycles exchange_table lifetime moves nodes places rows \
	sample_list sample_list_items sample_list_trees small sources torch_collate torch_grad words)

# Files of Python tests with such a mark: to import the others takes half a minute.
marked = $(shell grep -l mark.$(1) python/tests/test_*.py)

# Begun first, so that no process is left with one of them at the end.
LONGEST := $(patsubst %,python/tests/test_%.py,torch_pools cuda_harness torch_ops_compile ray bench ray_nodes jax_grain recipes \
	gpu_harness processes calibrate resources bench_pipelines)

# What make test leaves out; .ci/run has the first half alone.
test-slow: test-processes
	$(BY_OFFICIAL_CALLS) -n 3 -m "not alone" python/tests

# Most of the time of these tests is the start of processes, which wait for each other.
test-processes: $(VENV)/.test $(VENV)/.windrow
	$(TEST_DRIVER) $(PY) -m pytest -rs -n 3 --dist loadfile --no-loadscope-reorder -m "slow and not alone" \
		$(LONGEST) $(filter-out $(LONGEST),$(call marked,slow))
	$(TEST_DRIVER) $(PY) -m pytest -rs -m alone $(call marked,alone)
	$(PY) scripts/ci/soak.py --seconds 20 & soak=$$!; $(PY) scripts/ci/soak_workers.py --seconds 20; workers=$$?; \
		wait $$soak && exit $$workers

test-package: $(VENV)/.package $(VENV)/.windrow
	CARGO=$(CARGO) scripts/release/package.sh

# What CI would not run otherwise, each in its shortest form that still fails when it should.
test-short: gpu-model demo $(VENV)/.test $(VENV)/.docs $(VENV)/.onnx
	CARGO=$(CARGO) scripts/ci/examples.sh
	CARGO=$(CARGO) scripts/docs/build.sh
	CARGO=$(CARGO) scripts/ci/loom.sh
	$(CARGO) test --locked --features tracing --config profile.test.package.windrow.opt-level=0 --test suite errors::
	scripts/ci/run.sh scripts/sim/device_counts.py --only "W5b affine"
	scripts/ci/run.sh scripts/sim/device_counts.py --pairs
	scripts/ci/run.sh scripts/sim/device_traces.py out/traces --only "W3 address" --scale 64 --arch 90
	scripts/ci/run.sh scripts/sim/device_code_mutants.py --count 8 --workload "W3 address" --least 0.2
	scripts/ci/run.sh scripts/ci/fuzz.sh 10 python
	if $(PY) -c "import onnxruntime" 2>/dev/null; then scripts/ci/run.sh python benches/pipelines/micro_batcher.py --seconds 0.1; \
		else echo "SKIP micro_batcher: onnxruntime did not install"; fi
	$(MAKE) --no-print-directory gpu-check BUNDLE=--simulate
	$(MAKE) --no-print-directory bench-check

lint: $(NVCC_READY) $(VENV)/.lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked -- -D warnings
	DOCS_RS=1 scripts/ci/msrv.sh --features cuda & oldest=$$!; \
		$(WITH_NVCC:@%=%) CUDASIM_BUILD=0 $(CARGO) clippy --workspace --all-targets --features cuda --locked -- -D warnings; \
		clippy=$$?; wait $$oldest && exit $$clippy # DOCS_RS: no kernels, which nvcc compiles on one core meanwhile
	$(WITH_NVCC) scripts/sim/device_code.py --check 80
	$(WITH_NVCC) CARGO=$(CARGO) scripts/ci/oldest_pyo3.sh --check
	RUSTDOCFLAGS=-Dwarnings $(CARGO) doc --no-deps --locked --features ndarray,testing
	scripts/ci/public_items.py
	scripts/docs/readme_table.py --check
	scripts/gpu/plots.py --check
	scripts/docs/stubs.py --check
	scripts/ci/python_api.py --check
	scripts/ci/unsafe_table.py --check
	scripts/ci/module_cycles.py src python/src python/python/windrow
	scripts/ci/script_list.py
	for file in tests/*.rs; do name=$$(basename $$file .rs); grep -qx "mod $$name;" tests/suite.rs || grep -qx "name = \"$$name\"" Cargo.toml || \
		{ echo "$$file: neither a module of tests/suite.rs nor a program of Cargo.toml, so that its tests do not run"; exit 1; }; done
	scripts/docs/links.py
	scripts/ci/commit_msg.sh
	sed -n 's/^    "\([^"*]*\).*/\1/p' .cargo/mutants.toml | xargs ls -d >/dev/null
	$(VENV)/bin/typos
	scripts/sim/wait_mutants.py --list >/dev/null
	$(WITH_NVCC) CUSTOM_LIBFUZZER_PATH=$(CURDIR)/target/not-linked.a $(CARGO) check --quiet --locked --manifest-path fuzz/Cargo.toml \
		--target-dir target --features cuda # libfuzzer itself is not compiled
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(VENV)/bin/zizmor --offline --quiet .github

# BENCH_FLAGS: options of `python -m windrow bench`, such as --quick. QUIET=scripts/docs/quiet.sh waits for a quiet machine before each part.
bench: $(VENV)/.bench $(VENV)/.windrow
	$(QUIET) $(CARGO) bench --locked --bench host
	mkdir -p out/bench
	PYTHONPATH=$(VENV)/trl $(QUIET) $(PY) -m windrow bench --commit "$$(git describe --always --dirty)" --json out/bench/host.json \
		--html out/bench/report.html $(BENCH_FLAGS)

bench-check: $(VENV)/.bench-check $(VENV)/.windrow $(NVCC_READY)
	$(WHEEL_NVCC) $(TEST_DRIVER) CARGO=$(CARGO) PYTHON=$(abspath $(PY)) scripts/ci/bench_check.py

# The packages of the tests only where the queue runs.
gpu-check: $(NVCC_READY) $(if $(filter --simulate,$(BUNDLE))$(wildcard /dev/nvidia0),$(VENV)/.test) $(VENV)/.windrow
	$(WITH_NVCC) CARGO=$(CARGO) PYTHON=$(abspath $(PY)) scripts/gpu/bundle.sh $(BUNDLE)

wheels: $(VENV)/.package $(NVCC_READY)
	$(PIP) --quiet ziglang
	$(WHEEL_NVCC) PATH=$(abspath $(VENV))/bin:$$PATH PYTHON=$(abspath $(PY)) CARGO=$(CARGO) scripts/release/wheels.sh

wait-mutants: $(NVCC_READY)
	$(WITH_NVCC) CARGO=$(CARGO) scripts/sim/wait_mutants.py

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9) and "windrow needs Python 3.9 or newer")'
	@echo "Making $(VENV), with pip and maturin from PyPI: half a minute."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --quiet --upgrade pip 'maturin>=1.12.6,<2'
	@touch $@

$(VENV)/.windrow: $(VENV)/.venv $(NVCC_READY) $(SOURCES)
	@$(if $(NVCC_READY),$(ANNOUNCE_KERNELS))
	rm -rf target/wheels
	$(WHEEL_NVCC) $(PY) -m maturin build --release --locked --manifest-path python/Cargo.toml --interpreter $(PY) --out target/wheels
	$(PIP) --quiet --force-reinstall --no-deps target/wheels/*.whl
	@touch $@

$(VENV)/.cuda: python/requirements/cuda.txt $(VENV)/.venv
	@echo "Installing nvcc from PyPI into $(VENV)/nvcc: 280 MB."
	$(PIP) --quiet --upgrade --target $(VENV)/nvcc -r $<
	@touch $@

$(VENV)/.demo: python/requirements/demo.txt $(VENV)/.venv
	@echo "Installing NumPy, Pillow, scikit-learn and torch: about 3 GB on Linux, where torch brings CUDA libraries."
	$(PIP) -r $<
	@$(call optional,'pygame-ce>=2.3',the demo runs without its sound.)
	@touch $@

$(VENV)/.test: python/requirements/test.txt python/requirements/peers.txt python/requirements/jax.txt python/requirements/ray.txt $(VENV)/.demo
	$(PIP) -r $<
	@$(call optional,'paddlepaddle>=3.0',its tests are skipped.)
	@$(call optional,'torchdata>=0.10',its tests are skipped.)
	@$(call optional,'lightning>=2.4',its test is skipped.)
	@$(call optional,'transformers>=4.45',its tests are skipped.)
	@$(call optional,'spdl-core>=0.8',its test is skipped.)
	@$(call optional,'pyright>=1.1.380',user programs are checked by mypy alone.)
	@$(call optional,'trl==0.15.2',the collator that follows its own is tested by hand-written cases alone.)
	@$(call optionals,python/requirements/peers.txt,its tests are skipped.)
	@$(call optional,-r python/requirements/jax.txt,tests of windrow.jax.grain are skipped.)
	@$(call optional,-r python/requirements/ray.txt,tests of windrow.ray are skipped.)
	@touch $@

$(VENV)/.docs: python/requirements/docs.txt $(VENV)/.venv
	$(PIP) --quiet -r $<
	@touch $@

$(VENV)/.package: $(VENV)/.venv
	$(PIP) --quiet 'auditwheel>=6' 'twine>=6'
	@touch $@

# Only for its library, which the example links at run time.
$(VENV)/.onnx: $(VENV)/.venv
	@$(call optional,'onnxruntime>=1.22',its example is built and not run.)
	@touch $@

$(VENV)/.lint: python/requirements/lint.txt $(VENV)/.venv
	$(PIP) --quiet -r $<
	@touch $@

$(VENV)/.bench-check: $(VENV)/.venv
	$(PIP) --quiet 'numpy>=1.22'
	@touch $@

# A folder of its own for trl: the tests compare with an older one.
$(VENV)/.bench: python/requirements/bench.txt python/requirements/peers.txt $(VENV)/.venv
	$(PIP) -r $<
	@$(call optionals,python/requirements/peers.txt,its contenders are left out.)
	@$(call optional,'transformers>=4.45',its contenders are left out.)
	@$(call optional,--upgrade --no-deps --target $(VENV)/trl 'trl>=0.20',its contender is left out.)
	@$(call optional,'nvidia-dali-cuda130>=2.0',the comparison runs without DALI.)
	@touch $@
