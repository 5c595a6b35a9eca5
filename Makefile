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
.PHONY: setup train test check bench experiments

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

test: $(READY)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks $(ARGS)

experiments: $(READY)
	$(BIN)/python -m experiments $(ARGS)
