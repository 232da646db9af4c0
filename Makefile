# make demo: a private training run on bundled data. make test: everything CI runs. make quick: the tests without the slow
# families. make docs: these pages as a site, in site/. make wheel: what is published, in dist/. All do all their set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt

# what is imported is compiled once, not anew in every process of a test
test quick soak soak-ascii soak-busy: export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test quick lint types docs wheel soak soak-ascii soak-busy benchmark clean

demo: $(VENV)/.demo
	$(BIN)/discreet demo

test: lint types $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist worksteal

quick: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/ty check

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheel: $(BIN)/python
	$(BIN)/python -m pip install --quiet build
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# more of everything; then all tests in the C locale, whose terminals have no letters but ASCII; then on a busy machine
soak: $(VENV)/.test
	DISCREET_SOAK=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
	$(MAKE) soak-ascii soak-busy

ASCII := LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=ascii

soak-ascii: $(VENV)/.test
	$(ASCII) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

soak-busy: $(VENV)/.test
	$(BIN)/python tests/busy.py 4 $(BIN)/python -m pytest -n 2 --dist worksteal

benchmark: $(VENV)/.benchmark
	$(BIN)/python benchmarks/speed.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python $(INPUTS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[data]"
	touch $@

$(VENV)/.test: $(BIN)/python $(INPUTS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

$(VENV)/.docs: $(BIN)/python $(INPUTS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

$(VENV)/.benchmark: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[benchmarks]"
	touch $@

clean:
	rm -rf $(VENV) site dist
