# Two commands do everything on a machine with Python >= 3.10: `make demo` and `make test`.
# Without an NVIDIA GPU, `make setup TORCH=cpu` first: torch without CUDA is a fraction of the download.
PYTHON ?= python3
TORCH ?= default
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CPU_WHEELS := https://download.pytorch.org/whl/cpu
DIST := dist

.PHONY: help setup demo test test-all lint docs dist clean

help:
	@echo "make setup     the virtual environment alone; TORCH=cpu: torch without CUDA"
	@echo "make demo      set up, run the embedded demonstration, write its report"
	@echo "make test      set up, lint, type-check, run the tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      ruff and mypy --strict"
	@echo "make docs      build the site into site/, strictly"
	@echo "make dist      build wheel and sdist into dist/ and check them"
	@echo "make clean     remove the virtual environment, caches and what was built"

$(VENV)/.installed: pyproject.toml
	@echo "Setting up $(VENV), the first time only: 6.6 GB on disk, most of it torch's CUDA libraries,"
	@echo "5 to 15 minutes with a usual connection. Without an NVIDIA GPU: make setup TORCH=cpu (2.2 GB)."
	$(PYTHON) -m venv $(VENV)
ifeq ($(TORCH),cpu)
	$(PIP) install --progress-bar on torch torchvision --index-url $(CPU_WHEELS)
endif
	$(PIP) install --progress-bar on -e '.[all,dev]'
	@du -sh $(VENV) | awk '{print "Set up: " $$1 " in " $$2}'
	@touch $@

setup: $(VENV)/.installed

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) install --quiet -e '.[docs]'
	@touch $@

demo: setup
	$(BIN)/wildtta demo

lint: setup
	$(BIN)/ruff check src tests benchmarks docs/examples
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

test-all: lint
	$(BIN)/python -m pytest -m '' -n auto --maxprocesses 4 --dist loadfile

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

dist: setup
	rm -rf $(DIST)
	$(BIN)/python -m build --outdir $(DIST)
	$(BIN)/twine check --strict $(DIST)/*

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache $(DIST) site
