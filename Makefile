# Every command makes what it needs in .venv on its first call; a second call goes straight to work.
# Only Python (3.10 or newer), pip and make are asked for. Node.js, where it is there, adds the check of web/js.

PYTHON ?= python3
# Any requirement that pip understands. Where pip is to look for it is pip's own setting (PIP_EXTRA_INDEX_URL and others).
TORCH ?= torch==2.13.0
# The oldest torch that is supported, and the newest.
TORCHES ?= 2.4.0 2.15.0
# The frameworks to train with: newest or oldest, which also takes the first of TORCHES.
SET ?= newest
# How often, and beside how many busy loops, `make busy` runs the suite.
ROUNDS ?= 5
LOOPS ?= 8
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
PEERS := $(VENV)/peers
OLDEST := $(filter oldest,$(SET))
OLDEST_TORCH := $(VENV)/torch-$(firstword $(TORCHES))
FRAMEWORKS := $(VENV)/frameworks$(OLDEST:%=-%)
NPM := $(shell command -v npm 2>/dev/null)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo serve test test-tools fuzz attack busy test-campaigns test-frameworks test-torch test-lowest faults docs lint style types web platforms format bench bench-probe kernels gpu bench-store bench-delivery bench-diagnosis bench-team bench-page soak year simulate-check clinic screenshots gallery audit lock wheel clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.server ## train a small model in fp16 and watch it in a browser (ARGS="--help")
	@$(BIN)/ampmon demo $(ARGS)

serve: $(VENV)/.server ## start the server and its page
	@$(BIN)/ampmon serve $(ARGS)

test: $(VENV)/.dev ## run all tests, in .venv alone (ARGS="-k scaler")
	@$(BIN)/python -m pytest --numprocesses logical $(ARGS)

test-tools: $(VENV)/.dev ## install the system programs that some tests need: Chromium, nginx, PostgreSQL
	@$(BIN)/python tests/tools.py

fuzz: $(VENV)/.dev ## ask the API every case that its OpenAPI document allows (minutes)
	@$(BIN)/python -m pytest --hypothesis-profile=long --timeout=0 tests/server/test_openapi.py $(ARGS)

attack: $(VENV)/.dev ## attack real servers as an outsider would, and count what gets through (four minutes; ARGS="--only linked")
	@PYTHONPATH=tests:. $(BIN)/python -m campaigns.attack $(ARGS)

busy: $(VENV)/.dev ## run the suite five times beside eight busy loops (an hour; ROUNDS=1 LOOPS=2)
	@trap 'exit 1' INT; \
	for loop in $$(seq $(LOOPS)); do while kill -0 $$$$ 2>/dev/null; do :; done & done; \
	for round in $$(seq $(ROUNDS)); do echo "round $$round:"; $(BIN)/python -m pytest --numprocesses logical $(ARGS) || failed=1; done; \
	exit $${failed:-0}

test-campaigns: $(VENV)/.dev ## run the tests of the campaigns and benchmarks (ARGS="campaigns/clinic"; minutes)
	@$(BIN)/python -m pytest --numprocesses logical --dist loadfile $(or $(ARGS),campaigns)

test-frameworks: $(FRAMEWORKS)/.installed ## train with Hugging Face, Lightning, DeepSpeed and others, watched, and compare (ten minutes; SET=oldest)
	@FRAMEWORKS_PYTHON=$(CURDIR)/$(FRAMEWORKS)/bin/python FRAMEWORKS_SET=$(SET) \
	  $(BIN)/python -m pytest --numprocesses logical campaigns/frameworks $(ARGS)

test-torch: $(TORCHES:%=$(VENV)/torch-%/.installed) ## run the training side's tests with the oldest and the newest torch (ten minutes; TORCHES=2.9.1)
	@for torch in $(TORCHES); do echo "torch $$torch:"; \
	  $(VENV)/torch-$$torch/bin/python -m pytest --numprocesses logical \
	    $(or $(ARGS),tests/scaler tests/probe tests/core tests/transport tests/device tests/examples campaigns/matrices/test_devices.py) || exit 1; done

test-lowest: $(VENV)/lowest/.installed ## run the tests with the lowest versions that pyproject.toml allows (ARGS="tests/server")
	@$(VENV)/lowest/bin/python -m pytest --numprocesses logical $(ARGS)

faults: $(VENV)/.dev ## fail each call of each part in each way (hours; goes on where it was interrupted; ARGS="--only 'sender/*'")
	@PYTHONPATH=tests:. $(BIN)/python -m campaigns.faults --all $(ARGS)

docs: $(VENV)/.dev ## build the documentation into build/docs; a server shows it under /docs
	@PYTHONPATH=. $(BIN)/python -m campaigns.reference
	@$(BIN)/python hatch_build.py
	@echo "Open build/docs/index.html, or /docs on a server."

lint: style types web ## check style, types and the walls between modules

style: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports

types: $(VENV)/.dev
	@$(BIN)/mypy

web: ## check the types of web/js and run its tests (skipped where Node.js or its registry is not there)
ifeq ($(NPM),)
	@echo "web/js is neither type-checked nor unit-tested: that needs Node.js, and there is no npm here."
else
	@test web/node_modules/.installed -nt web/package.json || \
	  { $(NPM) install --prefix web --no-package-lock --no-audit --no-fund --fetch-timeout 60000 --fetch-retries 1 --silent && touch web/node_modules/.installed; } || \
	  echo "web/js is not type-checked: npm could not install TypeScript here."
	@test ! -e web/node_modules/.installed || $(NPM) run --prefix web --silent check
	@$(NPM) run --prefix web --silent test
endif

# The installed NumPy knows the types of its own Python only, so for another one its arrays are Any.
platforms: $(VENV)/.dev ## check the types for the systems and versions that the tests do not run on
	@for platform in darwin win32; do \
	  echo "$$platform:"; $(BIN)/mypy --platform $$platform --cache-dir .mypy_cache/$$platform ampmon server/ampmon_server || exit 1; done
	@for version in 3.10 3.13; do \
	  echo "Python $$version:"; $(BIN)/mypy --python-version $$version --no-warn-return-any || exit 1; done

format: $(VENV)/.dev ## let ruff lay out the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.dev ## measure what monitoring costs; writes benchmarks/results/
	@PYTHONPATH=tests:. $(BIN)/python -m benchmarks $(ARGS)

bench-probe: $(PEERS)/.installed ## the same for the probe, beside other tools and in whole steps (ten minutes)
	@PYTHONPATH=tests:. $(PEERS)/bin/python -m benchmarks $(or $(ARGS),probe)

kernels: $(VENV)/.dev ## compile the kernels for ten GPUs, none of which is needed; writes their registers to benchmarks/results/
	@$(BIN)/python -m benchmarks.kernel_code

gpu: $(VENV)/.dev ## prove on a GPU what holds, in ten minutes; writes benchmarks/results/ (ARGS="training memory", ARGS="--resume")
	@$(BIN)/python -m benchmarks.gpu $(ARGS)

bench-store: $(PEERS)/.installed ## the same for the store, beside other tools' servers (a quarter of an hour; ARGS="store --quick")
	@PYTHONPATH=tests:. $(PEERS)/bin/python -m benchmarks $(or $(ARGS),store)

bench-delivery: $(PEERS)/.installed ## the same for the way to the database, beside other tools that are killed (a quarter of an hour)
	@PYTHONPATH=tests:. $(PEERS)/bin/python -m benchmarks $(or $(ARGS),delivery)

bench-diagnosis: $(VENV)/.dev ## the same for judging runs, of up to ten million updates (a quarter of an hour; ARGS="diagnosis --quick")
	@PYTHONPATH=tests:. $(BIN)/python -m benchmarks $(or $(ARGS),diagnosis)

bench-team: $(VENV)/.dev ## the same for a team: access checks, rejected tokens, 500 pages and 200 clients (20 minutes; ARGS="team --quick")
	@PYTHONPATH=tests:. $(BIN)/python -m benchmarks $(or $(ARGS),team)

bench-page: $(PEERS)/.installed ## the same for the page in Chromium, beside other tools' pages (an hour; ARGS="page --quick")
	@PYTHONPATH=tests:. $(PEERS)/bin/python -m benchmarks $(or $(ARGS),page)

soak: $(VENV)/.dev ## kill trainer, sender and server a thousand times each and count what is lost (half an hour; goes on where it stopped)
	@PYTHONPATH=tests:. $(BIN)/python -m campaigns.soak $(ARGS)

year: $(VENV)/.dev ## put a generated year of a team's runs through ingest (two hours; goes on where it stopped; ARGS="--scale 0.5")
	@PYTHONPATH=tests:. $(BIN)/python -m campaigns.year $(ARGS)

clinic: $(VENV)/.dev ## diagnose small trainings, sick in known ways or healthy, and 300 drawn at random; run the sick ones again, cured (an hour)
	@PYTHONPATH=tests:. $(BIN)/python -m campaigns.clinic $(ARGS)

simulate-check: $(VENV)/.dev ## train small models under other policies and compare with what the simulator says (an hour; goes on where it stopped)
	@PYTHONPATH=tests:. $(BIN)/python -m campaigns.policy $(ARGS)

screenshots: $(VENV)/.dev ## picture every view of the page, of real trainings, into build/screenshots (a quarter of an hour; ARGS="--docs")
	@PYTHONPATH=tests:. $(BIN)/python -m campaigns.pictures $(ARGS)

gallery: $(VENV)/.dev ## train ten runs, each sick in one way, and write docs/gallery with their reports (minutes)
	@PYTHONPATH=tests:. $(BIN)/python -m campaigns.gallery

audit: $(VENV)/.dev ## look the installed packages up among known holes (needs the network)
	@$(PIP) install 'pip-audit>=2.7' && $(BIN)/pip-audit --skip-editable $(ARGS) || \
	  { echo "Holes are known, or nothing could be told, as without the network: see above." >&2; exit 1; }

lock: $(VENV)/.dev ## write what is installed, version by version, into requirements.lock
	@$(PIP) freeze --exclude-editable > requirements.lock
	@echo "requirements.lock holds $$(wc -l < requirements.lock) packages: pip install -r requirements.lock"

wheel: $(VENV)/.dev ## build dist/ampmon-*.whl
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

clean: ## remove what these commands made
	rm -rf $(VENV) dist build web/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Some systems ship Python without ensurepip: there the machine's own pip fills the environment.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "ampmon needs Python 3.10 or newer; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); else \
	  $(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; fi

$(VENV)/.server: pyproject.toml | $(BIN)/python
	@echo "Installing ampmon, its server and $(TORCH) into $(VENV); the first time takes minutes."
	@echo "To use ampmon from your shell too: source $(BIN)/activate"
	@$(PIP) install '$(TORCH)' --editable '.[server]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.server
	@echo "Installing what the tests and checks need into $(VENV)."
	@$(PIP) install '$(TORCH)' --editable '.[dev]'
	@touch $@

# Other tools bring versions of their own of what ampmon needs. So they get an environment above the other one, which
# stays as the tests know it: what is not found in the upper one, pip itself for one, comes from the lower.
define above
@$(1)/bin/python -m venv --without-pip $(2)
@$(1)/bin/python -c 'import site, sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
  > $$($(2)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth
endef
INSTALL := -m pip --disable-pip-version-check --quiet --quiet install

# What cannot be installed is left out, and its rows in the report say so.
$(PEERS)/.installed: pyproject.toml $(VENV)/.dev
	@echo "Installing the tools that ampmon is measured beside into $(PEERS); the first time takes a minute."
	$(call above,$(VENV),$(PEERS))
	@install="$(PEERS)/bin/python $(INSTALL)"; \
	  peers=$$($(PEERS)/bin/python -m benchmarks.peers) && $$install $$peers || for peer in $$peers; do \
	  $$install $$peer || echo "$$peer cannot be installed here." >&2; done
	@touch $@

# The same for the frameworks that train. What cannot be installed beside this torch is named in docs/frameworks.md.
$(FRAMEWORKS)/.installed: pyproject.toml $(if $(OLDEST),$(OLDEST_TORCH)/.installed,$(VENV)/.dev)
	@echo "Installing the frameworks into $(FRAMEWORKS); the first time takes some minutes."
	$(call above,$(if $(OLDEST),$(OLDEST_TORCH),$(VENV)),$(FRAMEWORKS))
	@$(FRAMEWORKS)/bin/python $(INSTALL) $(if $(OLDEST),,'$(TORCH)') --editable '.[frameworks$(OLDEST:%=-%)]'
	@# Ignite's example is in its source distribution alone; the oldest one has none.
	@$(if $(OLDEST),,$(FRAMEWORKS)/bin/python -m pip --disable-pip-version-check --quiet --quiet download --no-deps \
	  --no-binary :all: --dest $(FRAMEWORKS)/sources "pytorch-ignite==$$($(FRAMEWORKS)/bin/python -c 'import ignite; print(ignite.__version__)')" \
	  && tar -xzf $(FRAMEWORKS)/sources/pytorch_ignite-*.tar.gz -C $(FRAMEWORKS)/sources)
	@touch $@

$(VENV)/torch-%/.installed: | $(VENV)/.dev
	@echo "Installing torch $* into $(@D); a build for CUDA takes some gigabytes."
	$(call above,$(VENV),$(@D))
	@$(@D)/bin/python $(INSTALL) 'torch==$*'
	@touch $@

# httpx is what the test client of the lowest Starlette asks for.
$(VENV)/lowest/.installed: pyproject.toml $(OLDEST_TORCH)/.installed
	@echo "Installing the lowest versions of what ampmon depends on into $(@D); this takes some minutes."
	$(call above,$(OLDEST_TORCH),$(@D))
	@$(BIN)/python -m campaigns.lowest > $(@D)/lowest.txt
	@$(@D)/bin/python $(INSTALL) --constraint $(@D)/lowest.txt --editable '.[dev]' httpx
	@touch $@
