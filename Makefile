# make setup | horovod | test | test-under-load | check | docs | demo | wheel | pictures | papers | looks | lint | format | bench | soak | clean | distclean
# make cc-test | sanitize | sanitize-some | fuzz
# make nightly                    builds and tests with TensorFlow's nightly wheel, in build/tried
# make launchers                  Ray Train and torchrun start two workers, and start them again
# make gpu-test | gpu-dry-run     the GPU benchmark where there is no GPU
#
#   TENSORFLOW=2.18               the second supported version, in an environment of its own
#   TENSORFLOW_PACKAGE=tensorflow the wheel with GPU support instead of the CPU one
#   PYTHON=python3.11             the interpreter that the environment is made from

PYTHON ?= python3
TENSORFLOW ?= 2.21
TENSORFLOW_PACKAGE ?= tensorflow-cpu
PYTEST_ARGS ?=
BENCH_ROUNDS ?= 100

SUPPORTED := 2.18 2.21
ifeq ($(filter $(TENSORFLOW),$(SUPPORTED)),)
  $(error TENSORFLOW=$(TENSORFLOW) is not supported; supported are $(SUPPORTED))
endif
ifeq ($(filter $(TENSORFLOW_PACKAGE),tensorflow tensorflow-cpu),)
  $(error TENSORFLOW_PACKAGE=$(TENSORFLOW_PACKAGE) is neither tensorflow nor tensorflow-cpu)
endif

# .venv, .venv-2.18, .venv-2.21-tensorflow: two TensorFlows never share an environment.
FLAVOUR := $(TENSORFLOW)-$(TENSORFLOW_PACKAGE)
VENV := .venv$(patsubst %,-%,$(filter-out 2.21,$(FLAVOUR:-tensorflow-cpu=)))
BIN := $(VENV)/bin
# Where Python keeps none of what it compiles, each build step would compile TensorFlow's
# modules again.
PIP := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pip --disable-pip-version-check --quiet
# Programs that a launcher starts by name come from the environment. Many processes import the same
# files: where Python keeps none of what it compiles, each would compile all of them.
RUN := PYTHONDONTWRITEBYTECODE= PATH="$(CURDIR)/$(BIN):$$PATH"
# Named in every call of pip, so that no later one moves what TensorFlow depends on.
REQUIREMENT := "$(TENSORFLOW_PACKAGE)==$(TENSORFLOW).*"
# Prints the requirements of an extra, one a line.
EXTRA := import sys, tomllib; known = tomllib.load(open("pyproject.toml", "rb")); \
  print(*known["project"]["optional-dependencies"][sys.argv[1]], sep="\n")

# Four tests at a time: many wait, for another process or for a deadline, and not for a core. Tests
# that share a job stay together, and those that take longest come first (tests/conftest.py).
SEVERAL := --dist loadgroup --no-loadscope-reorder
IN_TWO := -n 2 $(SEVERAL)
IN_FOUR := -n 4 $(SEVERAL)

CXX_FILES := $(wildcard $(foreach dir,ops ops/lanes ops/nccl_tuner ops/testing passes benchmarks,$(dir)/*.cc $(dir)/*.h))

.DELETE_ON_ERROR:
.PHONY: setup build horovod test test-under-load check check-tests docs demo wheel pictures papers looks lint format bench soak nightly launchers gpu-test gpu-dry-run cc-test cc-lanes sanitize sanitize-some fuzz clean distclean

# The extension is looked at every time (ninja compiles what changed); the rest when one of the
# files that say what belongs in the environment is newer than it.
setup: $(VENV)/.dev build

build: $(VENV)/.ready
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python setup.py --quiet egg_info build_ext --inplace

# What the demo needs. Of thousands of modules few are imported: Python compiles them when they are,
# here and in all other environments.
$(VENV)/.ready: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	# TensorBoard 2.18 imports pkg_resources, which setuptools has up to 80.
	$(PIP) install --no-compile $(REQUIREMENT) "setuptools>=77,<81" ninja
	$(PIP) install --no-compile $(REQUIREMENT) --no-build-isolation --editable ".[examples,tensorboard]"
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(BIN)/python -c '$(EXTRA)' dev > $(VENV)/requirements.txt
	$(PIP) install --no-compile $(REQUIREMENT) --requirement $(VENV)/requirements.txt
	# Keras 2 for a test; on its own, since it would bring the other TensorFlow wheel along.
	$(PIP) install --no-compile --no-deps "tf_keras==$(TENSORFLOW).*"
	@touch $@

# Compiled for minutes, unless its wheel is in the cache: only for the tests and benchmarks that
# need it.
horovod: $(VENV)/.horovod

$(VENV)/.horovod: $(VENV)/.ready tools/build_horovod.py
	$(BIN)/python tools/build_horovod.py
	@touch $@

test: setup horovod
	@tools/install_browser.sh || true
	$(RUN) python -m pytest $(IN_FOUR) --durations=40 --durations-min=5 $(PYTEST_ARGS)

# The whole suite three times in a row while another program keeps every core busy.
test-under-load: setup horovod
	@tools/install_browser.sh || true
	$(RUN) python tools/under_load.py --times 3 python -m pytest $(IN_FOUR) $(PYTEST_ARGS)

# What is to be green after every change: lint, and the tests that start no workers and build nothing
# (make cc-test does, after a change of C++). mypy has one core to do, so tests run meanwhile.
check: setup horovod
	@$(MAKE) --no-print-directory -j2 lint check-tests

# make test tries all random cases.
check-tests:
	TESTS_SHARE_OF_EXAMPLES=0.25 $(RUN) python -m pytest $(IN_TWO) -m "not workers and not compiles" \
	  --ignore=tests/benchmarks/gpu $(PYTEST_ARGS)

# Generated tables, the architecture picture and docs/api.md; a test says whether they are up to date.
docs: setup horovod
	$(RUN) python -m tools.make_docs

demo: build
	$(RUN) tf-libra run -np 2 python examples/digits.py

# One for each TensorFlow, tried out in an environment that has nothing else, and no compiler.
WHEELS := dist/tensorflow-$(FLAVOUR:%-tensorflow-cpu=%)
wheel: build
	@rm -rf build/lib* build/bdist.* $(WHEELS)
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir $(WHEELS) .
	$(BIN)/python tools/try_wheel.py $(WHEELS)/*.whl

# The pictures of docs/tensorboard.md, docs/burst.md and docs/report_and_timeline.md, from runs of the
# demos.
pictures: setup
	tools/install_browser.sh
	$(RUN) tf-libra run -np 2 python examples/digits.py --logdir build/runs/libra
	$(RUN) tf-libra run -np 2 python examples/digits.py --logdir build/runs/wfbp --strategy wfbp
	$(RUN) python -m tools.tensorboard_tab --logdir build/runs --run libra --out docs/images
	$(RUN) tf-libra report build/runs/libra --svg docs/images/report
	$(RUN) tf-libra run -np 2 python examples/pipeline_digits.py --logdir build/pipeline --stages 2
	$(RUN) tf-libra run -np 2 python examples/burst_digits.py --logdir build/bursts
	for card in pipeline bursts; do \
	  $(RUN) python -m tools.tensorboard_tab --logdir build/$$card --card $$card --out docs/images; done

# The papers' evaluations, computed again: tables and pictures of docs/paper.md, docs/spp_paper.md and
# docs/deeppool_paper.md. Losses in the formats of the wire: the picture of docs/wire_format.md.
papers: setup
	for paper in paper spp deeppool; do $(RUN) python -m benchmarks.$$paper || exit 1; done
	$(RUN) python -m benchmarks.loss_curves --out docs/images/loss_curves.svg

# Every view of the tab, to be looked at: few groups and many, one rank and eight.
looks: setup
	tools/install_browser.sh
	$(RUN) python -m tools.tab_layout_check --out build/looks

bench: setup horovod
	@mkdir -p build
	$(RUN) python -m benchmarks.step_time --np 2 --model cnn5m \
	  --strategies none,horovod,syneasgd,wfbp,libra --rounds $(BENCH_ROUNDS) \
	  --json build/step_time.json

# 2,000 steps with random pauses; minutes.
soak: setup horovod
	@mkdir -p build
	$(RUN) python -m benchmarks.soak --np 4 --steps 2000 --json build/soak.json
	$(RUN) python -m benchmarks.soak --np 4 --steps 2000 --stages 3 --json build/soak_pipeline.json

# The GPU benchmark needs PyTorch, and launchers need PyTorch or Ray, none of them TensorFlow: an
# environment of their own.
GPU_VENV := .venv-gpu
GPU_REQUIREMENTS := import tomllib; \
  known = tomllib.load(open("pyproject.toml", "rb")); extras = known["project"]["optional-dependencies"]; \
  print(*known["tool"]["tf-libra"]["dependencies"], *extras["gpu"], *extras["launchers"], sep="\n")

GPU_PYTHON := PYTHONDONTWRITEBYTECODE= $(GPU_VENV)/bin/python
$(GPU_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_PYTHON) -c '$(GPU_REQUIREMENTS)' > $(GPU_VENV)/requirements.txt
	$(GPU_PYTHON) -m pip --disable-pip-version-check --quiet install --no-compile \
	  --requirement $(GPU_VENV)/requirements.txt
	@touch $@

gpu-test: $(GPU_VENV)/.ready
	$(GPU_PYTHON) -m pytest $(PYTEST_ARGS) tests/benchmarks/gpu

gpu-dry-run: $(GPU_VENV)/.ready
	$(GPU_PYTHON) -m benchmarks.gpu --dry-run --out build/gpu-dry-run --budget 3600

# The next TensorFlow, or any other, in an environment and a copy of the tree of its own.
NIGHTLY ?= tf-nightly-cpu
nightly:
	$(PYTHON) tools/try_tensorflow.py "$(NIGHTLY)"

launchers: build $(GPU_VENV)/.ready
	$(GPU_PYTHON) tools/try_launchers.py --python $(BIN)/python

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/lint_prose.py
	$(BIN)/python tools/lint_commits.py
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# C++ tests without TensorFlow under sanitizers: each *_test.cc of these folders is a program, linked
# with the rest of its folder and with doctest. Without sanitizers setup.py builds them.
CXX ?= g++
CC_DIRS := ops/lanes ops/nccl_tuner
cc_tests = $(notdir $(basename $(wildcard $(1)/*_test.cc)))
cc_objects = $(patsubst $(1)/%.cc,%.o,$(filter-out %_test.cc,$(wildcard $(1)/*.cc)))
CC_TESTS := $(foreach dir,$(CC_DIRS),$(call cc_tests,$(dir)))
# Lines, for the stacks that sanitizers print; more takes a fifth longer to compile.
CC_FLAGS := -std=c++17 -I. -pthread -g1 -Wall -Wextra
# The lanes of a checkout that a benchmark compares with another one.
CC_FLAGS_plain := -O3
# Without vptr, which opens pipes to look at objects: a test leaves no descriptors for that.
CC_FLAGS_asan := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize=vptr \
  -fno-sanitize-recover=all
CC_FLAGS_tsan := -O1 -fno-omit-frame-pointer -fsanitize=thread

# The precompiled header has no doctest: units would not link without it.

# Of a set of flags and a folder.
define cc_programs
build/cc/$(1)/%.o: $(2)/%.cc build/cc/$(1)/units.h.gch Makefile
	$(CXX) $(CC_FLAGS) $(CC_FLAGS_$(1)) -include build/cc/$(1)/units.h -MMD -MP -c $$< -o $$@

# All units of the folder as one: apart, half of their compilation would be headers.
build/cc/$(1)/$(2)/units.cc: $(wildcard $(2)/*.cc) Makefile
	@mkdir -p $$(@D)
	@printf '#include "%s"\n' $(filter-out %_test.cc,$(wildcard $(2)/*.cc)) > $$@

build/cc/$(1)/$(2)/units.o: build/cc/$(1)/$(2)/units.cc
	$(CXX) $(CC_FLAGS) $(CC_FLAGS_$(1)) -MMD -MP -c $$< -o $$@

$(patsubst %,build/cc/$(1)/%,$(call cc_tests,$(2))): %: %.o build/cc/$(1)/$(2)/units.o build/cc/main.o
	$(CXX) $(CC_FLAGS) $(CC_FLAGS_$(1)) $$^ -o $$@
endef

# The header itself is for a compiler that does not use the precompiled one.
define cc_variant
build/cc/$(1)/units.h.gch: ops/testing/precompiled.h Makefile
	@mkdir -p $$(@D)
	@cp $$< build/cc/$(1)/units.h
	$(CXX) $(CC_FLAGS) $(CC_FLAGS_$(1)) -MMD -MP -MF $$(@:.gch=.d) -x c++-header $$< -o $$@

.PHONY: cc-run-$(1)
cc-run-$(1): $(CC_TESTS:%=build/cc/$(1)/%)
	@for program in $$^; do echo "$$$$program" && $$$$program || exit 1; done
endef
CC_VARIANTS := plain asan tsan
$(foreach variant,$(CC_VARIANTS),$(foreach dir,$(CC_DIRS),$(eval $(call cc_programs,$(variant),$(dir)))))
$(foreach variant,$(CC_VARIANTS),$(eval $(call cc_variant,$(variant))))

# Of doctest's own code, sanitizers have nothing to say. Linked last, so that of inline functions
# that others have, too, theirs are taken.
build/cc/main.o: ops/testing/main.cc Makefile
	@mkdir -p $(@D)
	$(CXX) $(CC_FLAGS) -MMD -MP -c $< -o $@

.SECONDARY:
-include $(wildcard build/cc/*.d build/cc/*/*.d build/cc/*/ops/*/*.d)

# Without TensorFlow, for a benchmark that compares checkouts.
cc-lanes: $(patsubst %,build/cc/plain/%,$(call cc_objects,ops/lanes))

# Linked with the units of the extension, some against TensorFlow: setup.py knows how.
cc-test: $(VENV)/.ready
	@for program in $$($(BIN)/python setup.py --quiet cc_tests); do \
	  echo "$$program" && $$program || exit 1; done

sanitize: cc-run-asan cc-run-tsan

# Those that have most to do with threads, with memory that others write to, with what fails, and with
# what strangers send. Exchanges have a thread each and share nothing but memory that the thread
# sanitizer sees at two addresses. Grids and exhaustion take a minute of a core: `make sanitize`.
SOME := $(foreach test,control_plane control_plane_abort messenger collective faults,build/cc/tsan/$(test)_test) \
  $(foreach test,direct_all_reduce shared_memory fuzz frame messenger_peer,build/cc/asan/$(test)_test)
sanitize-some: $(SOME)
	@for program in $^; do echo "$$program" && $$program || exit 1; done

# What other ranks might send, mutated: see ops/lanes/fuzz_test.cc.
FUZZ_ITERATIONS ?= 20000
fuzz: build/cc/asan/fuzz_test
	TF_LIBRA_FUZZ_ITERATIONS=$(FUZZ_ITERATIONS) $<

clean:
	rm -rf build dist *.egg-info tf_libra/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path "./.venv*" -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-*
