# make demo   environment, then renders a world, trains a captioner on it and shows what it says
# make test   environment, then all tests
# Both use one environment in .venv; nothing but python3 and make is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test lint types clean

help:
	@sed -n 's/^# make/  make/p' Makefile

# uv installs in half a minute what takes pip minutes; where it cannot be had, pip does the same.
# The lock brings its own torch and a torchvision that fits: a system torch is never used.
$(READY): requirements.lock setup.cfg pyproject.toml
	@echo "Making the environment in $(VENV) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if $(BIN)/python -m pip install --quiet uv 2>/dev/null; then \
	    $(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.lock && \
	    $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e . ; \
	else \
	    echo "uv cannot be had; installing with pip, which takes a few minutes ..." ; \
	    $(BIN)/python -m pip install --quiet -r requirements.lock && \
	    $(BIN)/python -m pip install --quiet --no-deps -e . ; \
	fi
	@touch $@
	@echo "The environment is ready."

demo: $(READY)
	$(BIN)/lightning run recipes/quickstart.yaml

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) runs .pytest_cache .ruff_cache .mypy_cache
