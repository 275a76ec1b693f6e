# make demo: train a real network and show the point.   make test: the whole test suite.
# make check: linters, types and the fast tests.        make lint: linters and types alone.
# make inductor: the tests that compile for long.       make bench: the benchmarks.
# make pages: what the README and docs/ show, from what their code prints.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e

.PHONY: demo test lint check inductor bench pages clean

demo: $(VENV)/demo
	$(BIN)/python examples/train_digits.py

test: $(VENV)/test
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/test $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow and not inductor"

inductor: $(VENV)/test
	$(BIN)/python -m pytest -n auto --dist worksteal -m inductor

bench: $(VENV)/bench $(VENV)/demo
	$(BIN)/python benchmarks/per_op.py
	$(BIN)/python benchmarks/eager_paths.py
	$(BIN)/python benchmarks/compiled_step.py
	$(BIN)/python benchmarks/lanes.py
	$(BIN)/python benchmarks/transforms.py
	$(BIN)/python benchmarks/networks.py
	$(BIN)/python benchmarks/checkpointing.py
	$(BIN)/python benchmarks/lifetimes.py
	$(BIN)/python benchmarks/scopes.py
	$(BIN)/python benchmarks/reports.py
	$(BIN)/python benchmarks/slowest_rules.py
	$(BIN)/python benchmarks/data_parallel.py

pages: $(VENV)/test
	for page in README.md docs/*.md; do PYTHONPATH=tests $(BIN)/python -m support.pages $$page || exit 1; done

# One stamp a set of extras: what is installed already is not installed again.
$(VENV)/%: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) ".[$*]"
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info
