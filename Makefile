# make train      a trained forecaster and its picture, from an empty machine with Python 3.11 and make
# make test       lint, types and every quick test (under 10 minutes on 2 cores)
# make test-slow  the long ones
# make test-cuda  the CUDA kernels, without a device: in the simulator, and compiled for three architectures
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test test-slow test-cuda clean

train: $(VENV)/installed
	$(BIN)/plait train forecast

# Two tests at a time, with one thread each. Tests of threads ask for more by themselves.
test: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/installed-test
	$(BIN)/python -m pytest -m slow

test-cuda: $(VENV)/installed-cuda
	PLAIT_TEST_CUDA=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m cuda -n 2 --dist worksteal tests/cuda

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
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
