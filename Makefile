# On a fresh machine: `make demo` or `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint format clean

$(READY): pyproject.toml
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) (a few minutes the first time)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[offline,dev]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/pairstill demo --out runs/demo

test: $(READY)
	$(BIN)/pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs build dist .mypy_cache .pytest_cache .ruff_cache
