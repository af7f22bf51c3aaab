# Every target sets up .venv first where that is needed; no virtual environment has to be active.
# PYTHON chooses the interpreter that .venv is made with: make PYTHON=python3.12 bench
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP_LOG := $(VENV)/pip.log
# What pip says is shown only where it fails.
PIP_INSTALL = $(BIN)/python -m pip install --constraint constraints.txt $(1) > $(PIP_LOG) 2>&1 || { cat $(PIP_LOG) >&2; exit 1; }

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
COMMA := ,

.PHONY: bench test lint types mutants benchmark reference reproduce wheel clean

bench: $(INSTALLED)
	$(BIN)/skit bench --method fixed-k --dataset gsm8k

# Side by side, and one thread each: most of the models in the tests are too small to share out.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

# Not for CI: thousands of small faults, one after the other. make mutants ONLY='*__mutmut_*7' tries about a tenth.
mutants: $(INSTALLED)
	@$(call PIP_INSTALL,--editable '.[dev$(COMMA)mutants]')
	OMP_NUM_THREADS=1 $(BIN)/python scripts/mutants.py $(if $(ONLY),'$(ONLY)')

benchmark: $(INSTALLED)
	$(BIN)/python -m benchmarks

REFERENCE := $(BIN)/skit bench --method all --dataset gsm8k --limit 20 --out build/reference
TO_REFERENCE := --format md,html,csv,svg --out results/reference
reference: $(INSTALLED)
	rm -rf build/reference results/reference/measured results/reference/specedge results/reference/specpipe
	$(REFERENCE)/measured
	$(REFERENCE)/specedge --deployment specedge
	$(REFERENCE)/specpipe --deployment specpipe
	$(BIN)/skit report build/reference/measured $(TO_REFERENCE)/measured
	$(BIN)/skit report build/reference/specedge $(TO_REFERENCE)/specedge
	$(BIN)/skit report build/reference/specpipe $(TO_REFERENCE)/specpipe

# The experiments of the papers, published numbers beside ours; the searches for capacity take most of the time.
reproduce: $(INSTALLED)
	$(BIN)/skit reproduce all --to results/reference/papers

# With the native executor for this kind of processor; without a compiler, one that leaves it out.
wheel: $(INSTALLED)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls -l dist/*.whl

clean:
	rm -rf $(VENV) build dist mutants *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and by itself: pip then takes the CPU build where the package index or a link offers one.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard specbench_kit/models/executors/csrc/*.h specbench_kit/models/executors/csrc/*.cpp)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "specbench-kit needs Python 3.11 or newer: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "[1/3] making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/3] installing $$(grep '^torch==' constraints.txt), the largest download"
	@$(call PIP_INSTALL,torch)
	@echo "[3/3] installing specbench-kit and what it needs"
	@$(call PIP_INSTALL,--editable '.[dev]')
	@touch $@
