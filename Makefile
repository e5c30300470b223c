# The two commands of the README are `make demo` and `make test`; both set everything up first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test lint docs results clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Scope-WM needs Python 3.11 or newer: make PYTHON=python3.11 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[hub,dev,docs]'
	touch $@

demo: setup
	$(BIN)/scope-wm demo --out demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --durations 8  # one thread for each of the two processes

docs: setup
	$(BIN)/mkdocs build --strict
	@echo "Look at build/site/index.html"

# docs/results.md and its plots, from the evaluations that are kept in docs/results
results: setup
	rm -rf build/results
	$(BIN)/scope-wm report docs/results/simulator/* docs/results/true-dynamics/* \
		docs/results/lite/*/* docs/results/ablations/*/* --out build/results --videos 0
	rm -rf docs/plots
	cp build/results/report.md docs/results.md
	cp -r build/results/plots docs/plots

clean:
	rm -rf .venv demo build dist
