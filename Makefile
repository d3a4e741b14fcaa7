# make train      a trained forecaster and its picture, from an empty machine with Python 3.11 and make
# make test       lint, types, the order of the rooms and every quick test (8 to 13 minutes on 2 cores)
# make test-slow  the long ones
# make test-cuda  the CUDA kernels, without a device: in the simulator, and compiled for three architectures
# make test-lowest  kernels, layers, files, pictures and commands with the lowest versions that pyproject.toml allows
# make test-clients  programs of five other packages, plain and accelerated, each package in an environment of its own
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

CLIENTS := pytorch-forecasting sb3-contrib torchrl neuralforecast stanza

.PHONY: train test test-slow test-cuda test-lowest test-clients clean

train: $(VENV)/installed
	$(BIN)/plait train forecast

# Three tests at a time, with one thread each, because some wait for other processes. Tests of threads ask for more by
# themselves: there are then more threads than cores, and those that wait must not keep a core busy (OMP_WAIT_POLICY). mypy
# runs beside the tests. Bytecode is kept: tests start a hundred processes.
test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy & types=$$!; \
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive \
	$(BIN)/python -m pytest -n 3 --dist worksteal; tests=$$?; \
	wait $$types && exit $$tests

test-slow: $(VENV)/installed-test
	$(BIN)/python -m pytest -m slow

test-cuda: $(VENV)/installed-cuda
	PLAIT_TEST_CUDA=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cuda -n 2 --dist worksteal tests/cuda

# In an environment of its own. torch first, and as new as it may be; pip then leaves it alone.
LOWEST := $(VENV)-lowest
test-lowest: $(LOWEST)/installed
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest tests/kernels/test_activations.py tests/layers/test_stack.py \
	tests/training/test_checkpoint.py tests/data/test_series.py tests/data/test_images.py tests/tasks/test_pictures.py \
	tests/cli/test_cli.py tests/test_lowest.py

$(LOWEST)/installed: pyproject.toml
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet 'torch<=2.13.0'
	$(LOWEST)/bin/python -m pip install --quiet --editable . pytest hypothesis $$($(PYTHON) tests/lowest.py)
	touch $@

# Minutes on a quiet machine, and some GB of disk. What is measured goes to docs/clients.md by hand.
test-clients: $(VENV)/installed $(CLIENTS:%=$(VENV)-clients/%/installed)
	$(BIN)/python tests/clients/run.py --environments $(VENV)-clients --json $(VENV)-clients/clients.json

# torch first, so that no client brings another one. A client that cannot be had has no stamp, and is named in the report.
$(VENV)-clients/%/installed: tests/clients/versions.txt pyproject.toml
	rm -f $@
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --constraint $< torch && \
	$(@D)/bin/python -m pip install --quiet --constraint $< --editable . $* && touch $@ || true

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# The first stamp is touched too: what the tests need includes what training needs.
$(VENV)/installed-test: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $(VENV)/installed $@

# The compilers, not a CUDA build of torch.
$(VENV)/installed-cuda: $(VENV)/installed-test
	$(BIN)/python -m pip install --quiet --editable '.[test,cuda,triton]'
	touch $@

clean:
	rm -rf $(VENV) $(LOWEST) $(VENV)-clients .mypy_cache .ruff_cache .pytest_cache .hypothesis
