# make preflight   install into .venv and check this machine
# make test        install what the tests need, and run the tests: each fault once
# make fast        the tests that start no process, in a minute
# make coverage    whether tests run each line that reads from NVML, /sys, /proc, the kernel log and RDMA trees
# make incidents what interrupts training by published tables, and which share of it preflight names
# make test-rest   what `make test` leaves out: further variants of the same faults
# make test MORE=1 both in one call, as CI does
# make test-floor  a part of the tests with the oldest versions that pyproject.toml promises; test-newest: the newest
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One rank per GPU, or 2 ranks on a CPU.
GPUS := $(words $(wildcard /dev/nvidia[0-9] /dev/nvidia[0-9][0-9]))
RANKS ?= $(if $(filter 0,$(GPUS)),2,$(GPUS))
# Tests mostly wait for their own ranks: a few more run at once than there are cores.
WORKERS ?= $(shell expr $$(nproc) + 2)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
WRAPPERS := python-etcd urllib3 dnspython accelerate torchdata webdataset pytorch-lightning lightning-utilities torchmetrics huggingface-hub \
	safetensors pyyaml braceexpand tqdm fsspec packaging filelock

.PHONY: preflight test fast test-rest test-all test-gpu lease test-floor test-newest coverage lint bench soak sizes mutants
.PHONY: clean incidents

preflight: $(VENV)/.installed
	@# What torchrun would set, and warn about: so the screen shows only preflight's output.
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/torchrun --standalone --nproc-per-node $(RANKS) -m preflight --all

# Each worker of pytest would compile all tests again where Python may not keep what it has compiled.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: $(VENV)/.dev
	$(PYTEST) -m '$(if $(MORE),,not more and )not soak and not gpu'

fast: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n $$(nproc) --dist worksteal -m 'fast and not more and not soak and not gpu'

# With the rows of the fault table that it leans on, as far as they have a run of their own.
incidents: $(VENV)/.dev
	$(BIN)/python -m tests.incidents
	$(PYTEST) -q tests/incidents tests/test_faults.py tests/checks/gpu/test_gpu_faults.py -k "incidents or $$($(BIN)/python -m tests.incidents.rows)"

test-rest: $(VENV)/.dev
	$(PYTEST) -m 'more and not soak and not gpu'

test-all:
	$(MAKE) test MORE=1
	$(MAKE) test-floor test-newest

# In their own environments, several GB each (2 to 9 minutes): the engine and its reports, every level on real ranks,
# the trainer, explain, and everything that uses pynvml.
EDGES := core engine explain failure_book hangs nccl planning results sdk standin train_smoke checks/gpu checks/train \
	test_golden.py test_sound.py test_surroundings.py

test-floor test-newest: test-%:
	$(PYTHON) -m tests.edges $* $(VENV)/$*
	PYTHONDONTWRITEBYTECODE= $(VENV)/$*/bin/python -m pytest -n $(WORKERS) --dist worksteal \
		-m 'not more and not soak and not gpu' $(EDGES:%=tests/%)

# pyproject.toml names the modules. The coverage of all test processes is combined: of tests that read in a separate
# process, and of tests that start none.
COVER := $(BIN)/python -m coverage
READING := tests/checks/gpu/test_reading.py tests/checks/node/test_readings.py \
	$(addprefix tests/checks/gpu/test_released.py::test_,a_process_that_has_ended_is_not_ours \
	files_that_are_used_or_older_or_of_others_are_not_ours)
COVERED := $(addprefix tests/checks/gpu/test_,probing.py released.py pcie.py matrix.py nvlink.py health.py) \
	$(addprefix tests/checks/node/test_,kernel.py gpudirect.py surroundings.py storage_kinds.py storage_judge.py) \
	$(addprefix tests/checks/net/test_,rdma.py rdma_errors.py interfaces.py) $(addprefix tests/sdk/test_,cgroups.py files.py)

coverage: $(VENV)/.dev
	rm -f .coverage .coverage.*
	$(COVER) run -m pytest -q $(READING)
	$(COVER) run -m pytest -q -m fast -k 'not nodes_of_which and not 512 and not 1024' $(COVERED)
	$(COVER) combine -q
	$(COVER) report

lint: $(VENV)/.dev .typing
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/run.py

sizes:
	$(PYTHON) -m tests.sizes

mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants -j $(WORKERS)

# On a machine with NVIDIA GPUs: the checks of GPUs against nvidia-smi, and the whole plan on NCCL.
test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu tests

# The minutes of a lent GPU: tests/real_gpu/lease.py, docs/gpu-runs.md. LEASE=dry rehearses them on a CPU.
lease: $(VENV)/.dev
	$(BIN)/python -m tests.real_gpu.lease $${OUT:-lease-report}

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m soak tests

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "preflight needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(INSTALL) -e '.[dev]'
	@# Other projects' loaders and their dependencies, without torch: see tests/checks/data/test_wrappers.py.
	$(INSTALL) --upgrade --no-deps --target $(VENV)/wrappers $(WRAPPERS)
	@# The oldest supported version, for tests/checks/gpu/test_reading.py.
	$(INSTALL) --upgrade --no-deps --target $(VENV)/pynvml nvidia-ml-py==13.580.65
	touch $@

# mypy sees the three folders as the single package that they are when installed.
.PHONY: .typing
.typing:
	rm -rf .typing && mkdir -p .typing/preflight
	ln -s $(CURDIR)/preflight/* $(CURDIR)/checks $(CURDIR)/train_smoke .typing/preflight/

clean:
	rm -rf $(VENV) .typing build dist *.egg-info
