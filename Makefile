# make preflight   install into .venv and check this machine
# make test        install what the tests need, and run them
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A GPU each, or 2 ranks on a CPU.
GPUS := $(words $(wildcard /dev/nvidia[0-9] /dev/nvidia[0-9][0-9]))
RANKS ?= $(if $(filter 0,$(GPUS)),2,$(GPUS))
# Tests mostly wait for their own ranks: somewhat more at once than there are cores.
WORKERS ?= $(shell expr $$(nproc) + 2)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: preflight test test-gpu lint bench soak clean

preflight: $(VENV)/.installed
	@# What torchrun would set, and torch would warn of, so that the screen shows our words only.
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} PYTHONWARNINGS='ignore:Failed to initialize NumPy' \
		$(BIN)/torchrun --standalone --nproc-per-node $(RANKS) -m preflight --all

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(VENV)/.dev .typing
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

# On a machine with NVIDIA GPUs: the checks of GPUs against nvidia-smi, and the whole plan on NCCL.
test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu tests

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m soak tests

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "preflight needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(INSTALL) -e '.[dev]'
	@# By itself: preflight needs no NumPy, and most tests run without. Those that need it find it here.
	$(INSTALL) --upgrade --target $(VENV)/numpy numpy
	touch $@

# mypy sees the three folders as the one package that they are when installed.
.PHONY: .typing
.typing:
	rm -rf .typing && mkdir -p .typing/preflight
	ln -s $(CURDIR)/preflight/* $(CURDIR)/checks $(CURDIR)/train_smoke .typing/preflight/

clean:
	rm -rf $(VENV) .typing build dist *.egg-info
