# Everything runs in .venv, which `make` builds; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= auto
SECONDS ?= 600
SCALE ?= 4
SENTENCE ?= has a lot of the virtues of eastwood at his best.

.PHONY: demo test doors lint bench attack versions sbom clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[test,lint]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/conserva compare "$(SENTENCE)" --words --html demo.html

# The linters run beside the tests; what they say comes last.
test: $(VENV)/.installed
	@mkdir -p build; $(MAKE) --no-print-directory lint >build/lint.log 2>&1 & lint=$$!; \
	$(BIN)/python -m pytest --numprocesses $(WORKERS); tests=$$?; \
	wait $$lint; linted=$$?; cat build/lint.log; test $$tests = 0 -a $$linted = 0

# In environments of their own, which have the libraries that conserva.integrations work with. TransformerLens and inseq cannot
# be in the same one: they require typeguard 4 and 2.
doors:
	$(PYTHON) -m venv --clear build/doors
	build/doors/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	build/doors/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[test,doors]"
	build/doors/bin/python -m pytest tests/integrations --numprocesses $(WORKERS)
	$(PYTHON) -m venv --clear build/transformer-lens
	build/transformer-lens/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	build/transformer-lens/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable ".[transformer-lens]" pytest pytest-xdist
	build/transformer-lens/bin/python -m pytest tests/integrations/test_transformer_lens*.py --numprocesses $(WORKERS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/overhead.py --small --batch 1 --tokens 32
	$(BIN)/python benchmarks/flow.py
	$(BIN)/python benchmarks/evaluate.py
	$(BIN)/python scripts/performance_page.py

attack: $(VENV)/.installed
	$(BIN)/python scripts/attack.py --seconds $(SECONDS) --scale $(SCALE)

versions: $(VENV)/.installed
	$(BIN)/python scripts/check_versions.py

# In an environment of its own, which has every extra.
sbom:
	$(PYTHON) -m venv --clear build/sbom
	build/sbom/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	build/sbom/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[data,test,lint,bench,train]"
	build/sbom/bin/python scripts/bill_of_materials.py
	rm -rf build/sbom

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
