# Two commands on a fresh machine: `make sweep` and `make test`.
PYTHON ?= python3
TORCH_INDEX ?=
PIP_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
BIN := .venv/bin
ARGS ?=
# One thread each: torch's threads wait spinning, and those of several processes for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
# Compiled files are kept, which some containers turn off: tests start many interpreters.
export PYTHONDONTWRITEBYTECODE :=
# Three processes for two cores, since many tests wait for theirs; a file stays in one, and the
# long ones, with workers of their own, begin. Rewriting asserts, so that they say what they got,
# takes each process 10 s: that is for what failed.
SPREAD := --dist loadfile --no-loadscope-reorder
PLACES := tests/end_to_end tests/ranks tests/canaries tests/unit
FAST := $(PYTEST) -m "not gpu and not slow"
SLOW := $(PYTEST) -m "slow and not gpu and not night" --timeout=600
# Real processes on a shared machine: what failed gets one second chance, alone, and stays in view.
AGAIN := --last-failed --last-failed-no-failures none

.PHONY: sweep test test-full test-night check style types fast gpu clean

sweep: .venv/installed
	$(BIN)/python sweeps/overlap.py $(ARGS)

test: style
	$(MAKE) --no-print-directory -j2 types fast

fast: .venv/dev
	$(FAST) -n 3 $(SPREAD) --assert=plain $(PLACES) || $(FAST) $(AGAIN)

test-full: .venv/dev
	$(SLOW) -n 2 $(SPREAD) $(PLACES) || $(SLOW) $(AGAIN)

test-night: .venv/dev
	$(PYTEST) -m "night and not gpu" --timeout=1500

check: style types

style: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

# One process for a minute, while tests that wait for their workers leave it room.
types: .venv/dev
	nice $(BIN)/mypy

gpu: .venv/dev
	$(BIN)/python -m pytest -q -m gpu tests/gpu

.venv/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_INDEX) -e .
	touch $@

.venv/dev: .venv/installed
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_INDEX) -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
