# make help tells what there is.
#
# PYTHON    the interpreter that makes .venv                 make compare PYTHON=python3.12
# PIP_ARGS  more arguments for pip, such as an index         make compare PIP_ARGS="--extra-index-url ..."
# ARGS      more arguments for the command or for pytest     make compare ARGS="--backend torch"

PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=

BIN := .venv/bin
INSTALLED := .venv/installed
INSTALLED_DEV := .venv/installed-dev
SOURCES := harness backends datasets reports

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help compare test lint clean .venv

help:
	@echo "make compare   make .venv, run every framework with and without AMP, write the report"
	@echo "make test      run all tests: the core, then each framework in a process of its own"
	@echo "make lint      style, types and import rules"
	@echo "make .venv     only make the environment (all three frameworks, for a CPU)"
	@echo "make clean     remove .venv and what builds and tests left; runs/ is kept"
	@echo
	@echo 'Variables: PYTHON=python3.12  PIP_ARGS="..."  ARGS="..." (see the head of the Makefile)'

.venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints-cpu.txt
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: no $(PYTHON) here; install Python 3.11 or newer, or name it: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1), but Python 3.11 or newer is needed; name one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(if $(PIP_ARGS),:,echo 'make: on Linux x86-64 plain torch is a CUDA build of several GB; the small CPU build:'; \
	  echo '      make $(MAKECMDGOALS) PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"')
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -e '.[cpu,test]' -c constraints-cpu.txt $(PIP_ARGS)
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	$(BIN)/python -m pip install -e '.[cpu,dev]' -c constraints-cpu.txt $(PIP_ARGS)
	@touch $@

compare: $(INSTALLED)
	$(BIN)/python -m harness compare $(ARGS)

# One process per framework: TensorFlow and then Paddle in one process ends in a crash. All four
# parts run whatever the others did; "no tests collected" (exit 5) is a failure like any other.
test: $(INSTALLED)
	@failed=; \
	part() { \
	  name=$$1; shift; \
	  echo "== tests: $$name"; \
	  $(BIN)/python -m pytest "$$@" $(ARGS) || failed="$$failed $$name"; \
	}; \
	part core -n 2 -m "not torch and not tensorflow and not paddle and not gpu and not slow and not browser"; \
	part torch -m "torch and not gpu and not slow"; \
	part tensorflow -m "tensorflow and not gpu and not slow"; \
	part paddle -m "paddle and not gpu and not slow"; \
	if [ -n "$$failed" ]; then echo "== failed:$$failed" >&2; exit 1; fi; \
	echo "== core, torch, tensorflow and paddle passed"

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find $(SOURCES) tests -name __pycache__ -type d -prune -exec rm -rf {} +
