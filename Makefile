# Every target does its own set-up, so that it works on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up

export OMP_NUM_THREADS ?= 1

.PHONY: setup test lint docs demo bench
.DEFAULT_GOAL := setup

setup: $(STAMP)

# torch goes first and alone: pip then takes the build that suits this machine (a CPU build where one is offered)
# and the second command finds it installed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --editable '.[dev,docs]' --constraint constraints.txt
	touch $@

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build

demo: $(STAMP)
	$(BIN)/autopipe demo

bench: $(STAMP)
	set -e; for script in docs/benchmarks/*/*.py; do echo "$$script"; $(BIN)/python $$script; done
