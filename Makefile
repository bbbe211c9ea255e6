# Everything a fresh machine needs is made from here: Python 3.11+, Java 17+ and make are enough.
.DEFAULT_GOAL := help
.PHONY: help demo demo-console test quick versions campaign check format lock docs docs-serve print-shop pictures recording clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COLLECTED := $(VENV)/.collected

help: ## print these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(READY) ## polling compared with events in a terminal: local broker, Spark, SQLite, kill -9 of pipeline and broker
	@$(BIN)/instep demo

demo-console: $(READY) ## a pipeline with events that keep flowing, shown in a web console
	@$(BIN)/instep demo --console

# Some systems forbid Python to keep what it has compiled: each of the tests' processes would compile again.
test quick versions campaign $(COLLECTED): export PYTHONDONTWRITEBYTECODE :=

test: $(READY) $(COLLECTED) ## the whole test suite, against real servers
	@$(BIN)/python -m instep.local.class_archives
	@$(BIN)/python -m pytest -n 4 --dist loadgroup --no-loadscope-reorder --durations=10 --durations-min=5 -m "not long"

quick: $(READY) ## the tests that need no server, no Spark and no other process: under a minute
	@$(BIN)/python -m pytest -n 2 -m quick

versions: $(READY) ## the tests that depend on the database, on other versions; VERSIONS="postgres-14 …" for some of them
	@$(BIN)/python -m tests.versions $(VERSIONS)

campaign: $(READY) ## mixed faults on every database, compared with a model: about 10 minutes (ARGS="--seed 7 --databases postgres")
	@$(BIN)/python -m instep.local.class_archives
	@$(BIN)/python -m tests.campaign $(ARGS)
	@$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder -m long

check: $(READY) ## formatting, lint, types and import rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(READY) ## format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

# The theme prints a notice about its end of life at every build; pyproject.toml has the date.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1

docs: $(READY) ## build the documentation into site/; a broken link or anchor is an error
	@$(BIN)/python -m mkdocs build --strict

docs-serve: $(READY) ## build the documentation and show it on http://127.0.0.1:8000
	@$(BIN)/python -m mkdocs serve --strict

print-shop: $(READY) ## a print system and a contract system, and instep between them: a page shows both
	@$(BIN)/python examples/print_shop/run.py

pictures: $(READY) ## the pictures of the console in the documentation: about three minutes
	@$(BIN)/python -m scripts.console_pictures docs/images

recording: $(READY) ## record the demo again for README: about 90 seconds, on a quiet machine
	@$(BIN)/python -m scripts.record_demo record build/demo.cast
	@$(BIN)/python -m scripts.record_demo render build/demo.cast docs/images/demo.svg

lock: ## update requirements.lock (needs uv)
	@uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra all --group dev \
	  --no-annotate --no-emit-find-links --custom-compile-command "make lock" -o requirements.lock pyproject.toml

clean: ## remove the environment and everything built (fetched servers stay in the user's cache)
	@rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Compile the tests once: otherwise each of four workers does it, at the same time.
$(COLLECTED): $(READY) $(shell find tests -name '*.py')
	@for part in '[a-k]*' '[l-z]*'; do $(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider tests/$$part >/dev/null & done; wait
	@touch $@

$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "instep needs Python 3.11 or newer: install python3, or set PYTHON" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "instep needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version): set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) cannot create environments: install its venv module (Debian: python3-venv)" >&2; exit 1; }
	@echo "creating $(VENV) from requirements.lock" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@if command -v uv >/dev/null; then \
	  uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock && \
	  uv pip install --quiet --python $(BIN)/python --no-deps -e .; \
	else \
	  $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock && \
	  $(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e .; \
	fi
	@$(BIN)/python -m compileall -q instep instep_lab instep_bench pyspark_instep.py
	@touch $@
