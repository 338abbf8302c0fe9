# Everything runs in .venv, which `make` builds; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= auto
SENTENCE ?= has a lot of the virtues of eastwood at his best.

.PHONY: demo test lint bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[test,lint]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/conserva compare "$(SENTENCE)" --words --html demo.html

test: $(VENV)/.installed lint
	$(BIN)/python -m pytest --numprocesses $(WORKERS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/overhead.py --small --batch 1 --tokens 32
	$(BIN)/python benchmarks/flow.py
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python scripts/performance_page.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
