# make demo   environment, then renders a world, trains a captioner on it and shows what it says
# make test   environment, then the tests that answer in a few minutes
# make test-all  all tests, with every recipe and those in several processes: what CI runs
# make lock   hashes of the packages in requirements.lock, made anew for the versions that it names
# make fuzz   ten minutes of drawn inputs for everything that reads files; guided by coverage where atheris is (.[fuzz])
# make bench-gpu BENCH_PART=1  what is measured on a GPU, parts 1 to 3, each under nine minutes, into benchmarks/results/gpu
# make lint   ruff
# make types  mypy
# make docs   the documentation as a site, in site/
# make clean  removes the environment and what was made by running
#
# All use one environment in .venv, made anew when the lock changes; nothing but python3 (3.10 or later) and make is
# needed, and about 7 GB of disk.

PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Python's compiled files make the second start of a process twice as fast as the first
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all lock fuzz bench-gpu lint types docs clean

help:
	@sed -n 's/^# make/  make/p' Makefile

# uv installs in half a minute what takes pip minutes; where it cannot be had, pip does the same.
# The lock brings its own torch and a torchvision that fits: a system torch is never used.
$(READY): requirements.lock setup.cfg setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "Python 3.10 or later is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12"; exit 1; }
	@echo "Making the environment in $(VENV); the packages are about 3 GB to download ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	    { rm -rf $(VENV); echo "$(PYTHON) cannot make environments; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@if command -v uv >/dev/null; then uv=uv; \
	elif $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION) 2>/dev/null; then uv=$(BIN)/uv; fi; \
	if [ -n "$$uv" ]; then \
	    $$uv pip install --python $(BIN)/python --quiet --require-hashes -r requirements.lock && \
	    $$uv pip install --python $(BIN)/python --quiet --no-deps -e . ; \
	else \
	    echo "uv cannot be had; installing with pip, which takes a few minutes ..." ; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock && \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e . ; \
	fi || { echo "Installing failed; what is there is kept, and the same command goes on from it."; exit 1; }
	@touch $@
	@echo "The environment is ready."

demo: $(READY)
	$(BIN)/lightning run recipes/quickstart.yaml

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not dist"

test-all: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# the versions stay: edit them, or add lines, and run this; PyPI has the files that the hashes are of
lock:
	@command -v uv >/dev/null || { echo "This needs uv: pip install uv"; exit 1; }
	uv pip compile requirements.lock --universal --no-deps --generate-hashes --no-annotate --no-header \
	    --python-version 3.10 --quiet -o requirements.lock.new
	mv requirements.lock.new requirements.lock

fuzz: $(READY)
	$(BIN)/python tests/fuzz.py --minutes 10

BENCH_PART ?= 1

bench-gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu --part $(BENCH_PART)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist *.egg-info runs .pytest_cache .ruff_cache .mypy_cache .hypothesis
