# Every target sets itself up in .venv first; all it takes is make and Python 3.11 or newer.
#   make train ARGS="--scenario burst"    PYTHON chooses another interpreter, as in PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
ARGS ?=

.DEFAULT_GOAL := setup
.DELETE_ON_ERROR:
.PHONY: setup train test test-fast coverage fuzz check mutants bench experiments

setup: $(READY)

# torch comes first and alone: the exact version, asked for directly, is what keeps pip on the build
# that the machine provides, where it provides one; as another package's dependency it may be replaced.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "dlb_gym needs Python 3.11 or newer, and '$(PYTHON)' is not:" \
	       "name one that is, as in: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --editable '.[experiments,dev]'
	@touch $@

train: $(READY)
	$(BIN)/python train.py $(ARGS)

# One worker a core; a file stays with one of them, which keeps its fixtures.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile

test: $(READY)
	$(PYTEST) $(ARGS)

test-fast: $(READY)
	$(PYTEST) -m "not slow" $(ARGS)

# Lines that tests run. Kernels count where they run as plain Python, on the tests that are small
# enough for it.
coverage: $(READY)
	$(PYTEST) --cov --cov-report= --cov-fail-under=0
	NUMBA_DISABLE_JIT=1 $(PYTEST) -m interpreted --cov --cov-append

# Hostile input, as in ARGS="--seconds 300 --seed 1"; by coverage too where atheris is installed.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

mutants: $(READY)
	$(BIN)/python -m tests.mutants $(ARGS)

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

experiments: $(READY)
	$(BIN)/python -m experiments $(ARGS)
