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
.PHONY: setup train test test-fast lowest coverage fuzz check mutants bench experiments

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

# The fast tests with the lowest versions that pyproject.toml allows; they have no builds for a Python
# newer than 3.12. torch stays as it is: that old, it comes for Linux with 3 GB of CUDA. The kernels are
# kept apart, since another numba would write over them.
LOWEST := .venv-lowest

$(LOWEST)/.ready: pyproject.toml constraints.txt constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	grep -v '^torch==' constraints-lowest.txt > $(LOWEST)/constraints.txt
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check \
	  $$(grep -E '^(torch|hypothesis|pytest|pytest-xdist|simpy)==' constraints.txt)
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check \
	  --constraint $(LOWEST)/constraints.txt --editable '.[experiments,marl]'
	@touch $@

lowest: $(LOWEST)/.ready
	NUMBA_CACHE_DIR=$(CURDIR)/$(LOWEST)/kernels $(LOWEST)/bin/python -m pytest --numprocesses auto \
	  --dist loadfile -m "not slow" -W ignore::DeprecationWarning $(ARGS)

# Lines that tests run, in processes that they start too. Compiled kernels leave no trace: theirs count
# where the parity tests run them as plain Python, in processes of their own.
coverage: $(READY)
	$(PYTEST) $(ARGS) --cov

# Hostile input, as in ARGS="--seconds 300 --seed 1"; by coverage too where there is an atheris.
$(VENV)/.ready-to-fuzz: $(READY)
	$(PIP) --editable '.[fuzz]'
	@touch $@

fuzz: $(VENV)/.ready-to-fuzz
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
