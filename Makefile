# make demo      renders scenes, trains a captioner on them and shows its captions
# make test      runs the tests that take a few minutes
# make test-all  runs all tests, with every recipe and tests in several processes, as CI does
# make lock      updates the hashes in requirements.lock after its versions were edited
# make fuzz      tests all readers of files with random inputs for ten minutes; atheris (.[fuzz]) adds coverage guidance
# make bench-gpu BENCH_PART=1  runs GPU benchmarks: parts 1 to 3, under nine minutes each; writes benchmarks/results/gpu
# make lint      runs ruff
# make types     runs mypy
# make docs      builds the documentation site in site/
# make clean     removes the environment and generated files
#
# All targets use the environment .venv, which is updated when requirements.lock changes. They need python3 (3.10 or
# later), make, and about 7 GB of disk.

PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# with compiled files, Python starts twice as fast the second time
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all lock fuzz bench-gpu lint types docs clean

help:
	@sed -n 's/^# make/  make/p' Makefile

# uv installs in half a minute, pip in some minutes; pip is used if uv is not available.
# The lock contains torch and a matching torchvision: a system installation of torch is never used.
$(READY): requirements.lock setup.cfg setup.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "Python 3.10 or later is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make $(or $(MAKECMDGOALS),demo) PYTHON=python3.12"; exit 1; }
	@echo "Creating the environment in $(VENV), with a download of about 3 GB ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	    { rm -rf $(VENV); echo "$(PYTHON) cannot create environments; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@if command -v uv >/dev/null; then uv=uv; \
	elif $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION) 2>/dev/null; then uv=$(BIN)/uv; fi; \
	if [ -n "$$uv" ]; then \
	    $$uv pip install --python $(BIN)/python --quiet --require-hashes -r requirements.lock && \
	    $$uv pip install --python $(BIN)/python --quiet --no-deps -e . ; \
	else \
	    echo "uv is not available; installing with pip, which takes a few minutes ..." ; \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock && \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e . ; \
	fi || { echo "The installation failed; the same command resumes it."; exit 1; }
	@touch $@
	@echo "The environment is ready."

demo: $(READY)
	$(BIN)/lightning run recipes/quickstart.yaml

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not dist"

test-all: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

# edit versions or add lines in requirements.lock, then run this; the hashes are those of PyPI's files
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
