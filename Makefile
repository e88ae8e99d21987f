# Everything a newcomer needs: `make demo` and `make test` set up .venv themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo test test-all test-long lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "tokenfield needs Python 3.11 or newer, but '$(PYTHON)' was not found; install it or run make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tokenfield needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1); run make PYTHON=/path/to/a/newer/python3"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing tokenfield and its tools into $(VENV) (a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/tokenfield demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not long'

test-long: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) out .pytest_cache .ruff_cache .hypothesis
