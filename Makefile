# Two commands do everything on a machine with Python >= 3.10: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help setup demo test test-all lint clean

help:
	@echo "make demo      set up, run the embedded demonstration, write its report"
	@echo "make test      set up, lint, type-check, run the tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      ruff and mypy --strict"
	@echo "make clean     remove the virtual environment and caches"

$(VENV)/.installed: pyproject.toml
	@echo "Setting up $(VENV) (torch, torchvision and timm: a few minutes the first time) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all,dev]'
	@touch $@

setup: $(VENV)/.installed

demo: setup
	$(BIN)/wildtta demo

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

test-all: lint
	$(BIN)/python -m pytest -m '' -n auto --maxprocesses 4 --dist loadfile

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
