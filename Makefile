# Everything runs in .venv, made on first use. PYTHON chooses the interpreter that makes it:
#   make test PYTHON=python3.12
# pip's own variables work as ever, e.g. PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu for the small torch.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports; compiling all of torch, too, is most of the work of installing it.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# What Python compiled is kept, whatever the shell says: compiling torch anew is most of what an interpreter's start takes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo shots test lint types docs bench soak trl-matrix integrations versions clean

# torch goes first and alone, so that the pinned build is in place before anything else asks for one.
$(VENV)/.demo: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "declog needs Python 3.11 or later: make PYTHON=...")'
	@echo "installing into $(VENV); this takes a minute or two"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip uninstall --yes -qq declog  # what a checkout was called before it was declog-rl
	@$(PIP) torch
	@$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) -e '.[dev]'
	@touch $@

demo: $(VENV)/.demo
	@$(BIN)/python examples/grpo_arithmetic.py

# without Chromium, the tests that look at pages are skipped, by name; PYTEST=--require-browser makes that a failure
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --durations=20 $(PYTEST)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# all that docs/ says about time, some ten minutes on two idle cores; BENCH=--write puts it there, --short tries it
bench: $(VENV)/.dev
	@$(BIN)/python -m tests.benchmarks $(BENCH)

# what takes too long for `make test`, some twenty minutes; one part: .venv/bin/python -m tests.soak --only alone
soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak
	$(BIN)/python -m pytest -n auto -m hypothesis --hypothesis-profile=soak

# every version of TRL that imports with today's transformers, in a folder of its own; some ten minutes
trl-matrix: $(VENV)/.dev
	$(BIN)/python -m tests.integrations.trl.versions

# trainers with dependencies of their own, such as verl, each in a folder that has them; some three minutes
integrations: $(VENV)/.dev
	$(BIN)/python -m tests.integrations.own_env

# the wheel without torch on Python 3.11 to 3.13, and with the oldest versions that it allows; some five minutes
versions: $(VENV)/.dev
	@$(BIN)/python -m tests.versions

# the pictures of README and docs, from the demo; needs Chromium
shots: $(VENV)/.dev
	$(BIN)/python -m tests.runs.report.shots

clean:
	rm -rf .trl .own_env .versions build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
