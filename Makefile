# The course's commands. `make` alone lists them. Every command first makes .venv ready, which costs nothing when it is.

# Variables, all optional: PYTHON (the interpreter), CXX (the C++ compiler), TORCH_INDEX (address of an index with a CPU build of
# torch), ARGS (more arguments for the command), JOBS (processes that share the tests; 0: none but pytest's own).
SHELL := /bin/bash
VENV := .venv/bin
ARGS ?=
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup run test lab notebooks doctor lint sanitize wheelhouse clean distclean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv: install the course, torch and torch_npu
	@command -v "$(or $(PYTHON),python3)" >/dev/null || \
	    { echo "setup: Python is missing: install the packages python3 and python3-venv" >&2; exit 2; }
	@"$(or $(PYTHON),python3)" tools/setup_env.py

run: setup ## run the whole course into build/: notebooks, results.json
	@$(VENV)/python tools/run_notebooks.py $(ARGS)

# The server fetches nothing by itself: no news, no check for a newer JupyterLab. Root (a container) must be allowed by name.
LAB := --ServerApp.root_dir="$(CURDIR)" --LabApp.news_url=None \
    --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate --LabApp.default_url=/lab/tree/notebooks/index.ipynb

# PATH, so that `python` in a terminal of JupyterLab is this .venv's.
lab: setup ## open the front page of the notebooks in JupyterLab
	@PATH="$(CURDIR)/$(VENV):$$PATH" $(VENV)/python -m jupyterlab $(LAB) $$([ "$$(id -u)" != 0 ] || echo --allow-root) \
	    $(ARGS)

test: setup ## run the whole test suite
	@$(VENV)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

doctor: setup ## say what this machine has, one line per fact
	@$(VENV)/python -m helpers doctor $(ARGS)

notebooks: setup ## authors: run the committed notebooks again, in place, and tidy them
	@$(VENV)/python tools/run_notebooks.py --in-place $(ARGS)

lint: setup ## check style: ruff, and the form of the notebooks
	@$(VENV)/python -m ruff check .
	@$(VENV)/python tools/nbtidy.py --check

sanitize: setup ## authors: test the device with sanitizers, for memory errors and data races
	@$(VENV)/python tools/sanitize.py $(ARGS)

wheelhouse: setup ## authors: pack the course with all its packages, for a room without a network
	@$(VENV)/python tools/wheelhouse.py $(ARGS)

clean: ## remove what the commands made, except .venv
	@rm -rf build .pytest_cache .ruff_cache
	@find src tests tools notebooks benchmarks -name __pycache__ -o -name .ipynb_checkpoints 2>/dev/null | xargs -r rm -rf

distclean: clean ## remove .venv too
	@rm -rf .venv
