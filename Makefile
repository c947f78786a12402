# The commands of Draftline; `make help` lists them.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)
export DO_NOT_TRACK := 1
export PREFECT_HOME := $(CURDIR)/.cache/prefect
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export MLFLOW_DISABLE_TELEMETRY := true
# Every stage and test starts processes, which would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE
READY := $(VENV)/.ready
# The wheel of torch for the CPU alone, which `make setup` takes where an index offers it: other files than PyPI's, so other hashes.
TORCH_CPU := torch==2.13.0+cpu --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
INSTALL := $(BIN)/python -m pip install --quiet --require-hashes --no-deps
PORT ?= 5000
PYTEST := OMP_NUM_THREADS=1 python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder
TESTS := tests/unit tests/integration tests/e2e

.DEFAULT_GOAL := help
.PHONY: help setup doctor repro smoke rehearse test test-all mutants torture sanitize ui bench bench-gpu lint lock sbom audit clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

setup: $(READY) ## Make the virtual environment from the lock files

$(READY): requirements.lock requirements-cuda.lock
	@echo "installing the packages of requirements.lock in $(VENV): some 3 GB, minutes of silence"
	$(PYTHON) -m venv $(VENV)
	@echo '$(TORCH_CPU)' > $(VENV)/torch.txt
	@$(INSTALL) --requirement $(VENV)/torch.txt 2> $(VENV)/torch.log || { \
		echo "no torch for the CPU alone here ($(VENV)/torch.log): installing that of requirements-cuda.lock, with CUDA"; \
		$(INSTALL) --requirement requirements-cuda.lock; }
	$(INSTALL) --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import vl_convert; print(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))' > $(VENV)/vega.js
	@$(BIN)/python -m pip check
	@touch $@
	@echo "ready: source $(BIN)/activate"

doctor: ## Check this machine: what is missing for what; also where setup failed
	@for python in $(BIN)/python $(PYTHON) python3; do \
		if "$$python" -c "" 2> /dev/null; then exec "$$python" -m tasks.doctor; fi; \
	done; echo "error: no Python starts here; install Python 3.11" >&2; exit 1

repro: $(READY) ## Run the whole pipeline, stages side by side; what is up to date is not run again
	python -m flows.pipeline

smoke: $(READY) ## Run every stage once in about a minute and a half, on tiny models in build/smoke; its numbers mean nothing
	python -m tests.smoke

rehearse: $(READY) ## Run every stage of a paper's experiment on tiny stand-ins: make rehearse TASK=xsum-bild [DEVICE=cuda]
	python -m tests.rehearse $(or $(TASK),xsum-bild) --device $(or $(DEVICE),cpu)

test: $(READY) lint ## Check style and types, run the tests except the slow ones
	$(PYTEST) -m "not slow" $(TESTS)

test-all: $(READY) lint ## Check style and types, run all tests
	$(PYTEST) $(TESTS)

mutants: $(READY) ## Break the code on purpose, one mistake at a time; the tests must notice each one
	OMP_NUM_THREADS=1 python -m tests.mutants

torture: $(READY) ## Load a server with 256 clients while it is ended and killed; then do harm inside the work of every stage
	python -m tests.torture.load --minutes 10 --clients 256
	python -m tests.torture

sanitize: $(READY) ## Run the compiled kernel under AddressSanitizer and UBSan, past its bounds and on damaged files
	python -m tests.sanitize

bench: $(READY) ## Time decoding against transformers.generate and CTranslate2 (after make repro: the trained pair too)
	python -m tasks.bench decoding --task translation

bench-gpu: ## Check and time decoding on a CUDA GPU, with torch and transformers alone
	python3 -m tasks.bench gpu

lint: $(READY) ## Check style, security rules and types
	ruff check .
	ruff format --check .
	mypy

ui: $(READY) ## Open the record of all runs on http://127.0.0.1:5000
	-python -m tasks.tracking
	mlflow ui --backend-store-uri sqlite:///mlflow.db --host 127.0.0.1 --port $(PORT)

lock: $(READY) ## Compile the lock files anew from pyproject.toml; those of torch and its CUDA packages lie apart
	cat requirements.lock requirements-cuda.lock > $(VENV)/all.lock
	uv pip compile pyproject.toml --all-extras --python-version 3.11 --no-annotate --no-header --generate-hashes \
		--quiet --output-file $(VENV)/all.lock
	awk '/^[a-z]/ { cuda = /^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==/ } \
		{ print > (cuda ? "requirements-cuda.lock" : "requirements.lock") }' $(VENV)/all.lock

sbom: $(READY) ## Write the licences and a CycloneDX bill of materials of the environment to build/
	mkdir -p build
	uv tool run --quiet --from cyclonedx-bom==7.2.1 cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-file build/sbom.json $(BIN)/python
	uv tool run --quiet pip-licenses==5.5.0 --python $(BIN)/python --format markdown --output-file build/licences.md

audit: $(READY) ## Look up the locked packages in the advisories of PyPI; needs a network
	@mkdir -p build; uv tool run --quiet pip-audit==2.10.1 --strict --disable-pip --require-hashes --progress-spinner off \
		--requirement requirements.lock --requirement requirements-cuda.lock 2> build/audit.log || { \
		echo "error: packages named above have advisories; where none is, there are no answers: $$(tail -n 1 build/audit.log)" >&2; exit 1; }

clean: ## Remove what the pipeline made; the environment and the DVC cache stay
	rm -rf $(filter-out data/deepspeed/,$(wildcard data/*/)) models results .cache/resume .cache/datasets
