# On a fresh machine: `make demo`, `make test` or `make lint`. Each sets up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
AUDIT := .audit

.PHONY: demo test lint format docs audit clean

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
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The reference from the code, then the site in runs/site.
docs: $(READY)
	$(BIN)/python docs/make_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Known faults of what is installed. Needs the network; a package that could not be looked up is an error too.
audit: $(READY)
	@test -d $(AUDIT) || $(PYTHON) -m venv $(AUDIT)
	@$(AUDIT)/bin/pip install --quiet --disable-pip-version-check 'pip-audit>=2.7,<3'
	@$(BIN)/pip freeze --exclude-editable | grep == | sed 's/+[^ ]*$$//' > $(AUDIT)/installed.txt
	@test -s $(AUDIT)/installed.txt
	$(AUDIT)/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off -r $(AUDIT)/installed.txt

clean:
	rm -rf $(VENV) $(AUDIT) runs build dist .mypy_cache .pytest_cache .ruff_cache
