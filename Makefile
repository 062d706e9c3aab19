# The two commands: `make demo` trains a real network here, on the CPU; `make test` checks everything.
# Both make what they need in .venv, from a machine with python3, make and git.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST ?= $(BIN)/python -m pytest
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
DEMO_CLUSTER := uva-afton
# Compiled once for all that the tests start, and for later runs: to compile the tests takes longer than to collect them.
COMPILED = env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX=$(CURDIR)/$(VENV)/compiled

.PHONY: help demo test check lint types imports reference format benchmark soak soak-sharded clean

help:
	@echo "make demo       train the digits example here with 2 CPU processes (HERE=1 on a login node)"
	@echo "make test       ruff, mypy, import contracts and tests, on a real Slurm too where it can be had: about seven minutes"
	@echo "make test-chosen  the long tests that every change must pass: a few minutes more"
	@echo "make test-long  all tests that train in many processes, or for long: about 25 minutes"
	@echo "make test-all   every test there is, with one summary: hours; AGAIN=1 goes on, ONLY=training chooses"
	@echo "make test-inside  what a job needs inside: containers, environments, launchers, each run for real"
	@echo "make test-releases  the tests on a real Slurm, on every release (RELEASES='24.11 26.05': on these)"
	@echo "make test-torch-alone  the training entrypoint's tests, in a Python with torch alone"
	@echo "make test-torch-matrix  the same on other releases of Python and torch: writes the table in docs/training.md"
	@echo "make check      ruff, mypy, import contracts and stale reference pages alone"
	@echo "make reference  write docs/reference/ from the code"
	@echo "make benchmark  start-up time against the bare libraries"
	@echo "make soak       kill trainings at random moments, some hundred times: nothing may be lost"
	@echo "make soak-sharded  the same of sharded models and of pipelines"
	@echo "make format     format the code"
	@echo "make clean      remove .venv and caches"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "$(PYTHON) is older than 3.10: name a newer one, such as  make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); \
	    else \
	        echo "this Python cannot make virtual environments; on Debian: sudo apt-get install python3-venv" >&2; exit 1; \
	    fi; }

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing slurmgpu, torch and scikit-learn into $(VENV) ..." >&2
	@$(PIP) install -c constraints.txt -e '.[train]' numpy scikit-learn
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@echo "installing the tools for tests into $(VENV) ..." >&2
	@$(PIP) install -c constraints.txt -e '.[train,submitit,dev]'
	@touch $@

$(VENV)/.long: $(VENV)/.test
	@echo "installing Accelerate, Lightning and Selenium into $(VENV) ..." >&2
	@$(PIP) install -c constraints.txt -e '.[train,submitit,dev,gallery,browser]'
	@$(PIP) install -c constraints.txt --no-deps axe-playwright-python # for axe.min.js in it: Playwright is not needed
	@touch $@

demo: $(VENV)/.demo
	@printf '\n--- 1. The script that a cluster would get (slurmgpu render) ---\n\n'
	@$(BIN)/slurmgpu render examples/digits/job.yaml --cluster $(DEMO_CLUSTER) -A mygroup
	@printf '\n--- 2. Why it looks so (slurmgpu plan) ---\n\n'
	@$(BIN)/slurmgpu plan examples/digits/job.yaml --cluster $(DEMO_CLUSTER) -A mygroup
	@printf '\n--- 3. The same script, on this machine (slurmgpu run) ---\n\n'
	@$(BIN)/slurmgpu run examples/digits/job.yaml --cluster $(DEMO_CLUSTER) -A mygroup --processes 2 $(if $(HERE),--here) || { \
	    echo "(on a login node: make demo HERE=1)" >&2; exit 1; }
	@printf '\n--- 4. Next, on a real cluster ---\n\n'
	@echo "  (slurmgpu is $(BIN)/slurmgpu here; README says how to install it on a login node)"
	@echo "  slurmgpu cluster list                                   the cluster profiles that come with it"
	@echo "  slurmgpu cluster use NAME                               choose one (none: a plain Slurm is assumed)"
	@echo "  slurmgpu submit examples/digits/job.yaml --follow       the same job on 2 nodes x 2 GPUs"
	@echo "  slurmgpu submit --gpus 2 -t 1:00:00 -- python train.py  your own script"
	@echo "  slurmgpu status                                         what became of it"

check: lint types imports
	@$(BIN)/python docs/reference.py --check

lint: $(VENV)/.test
	@$(BIN)/ruff check . .ci/test-all
	@$(BIN)/ruff format --check . .ci/test-all

types: $(VENV)/.test
	@$(BIN)/mypy -p slurmgpu -p tests.slurm.recorded

imports: $(VENV)/.test
	@$(BIN)/lint-imports --config pyproject.toml

reference: $(VENV)/.test
	@$(BIN)/python docs/reference.py

$(VENV)/.compiled.done: $(VENV)/.test $(shell find tests -name '*.py')
	@! $(COMPILED) $(BIN)/python -m pytest $(QUICK_TESTS) --collect-only -q >/dev/null 2>&1 || touch $@

# Four files at a time. The checks run beside them, and the tests are compiled once before the four begin.
PARALLEL := --dist loadfile --no-loadscope-reorder
QUICK_TESTS := -m "not long and not inside"
test: $(VENV)/.test slurm-packages
	@echo "some 8,500 tests, on a real Slurm too: about seven minutes on 2 cores" >&2
	@log=$$(mktemp); $(MAKE) --no-print-directory check >"$$log" 2>&1 & check=$$!; rc=0; \
	    $(MAKE) --no-print-directory $(VENV)/.compiled.done; \
	    $(COMPILED) $(PYTEST) -n 4 $(PARALLEL) $(QUICK_TESTS) || rc=$$?; \
	    wait $$check || { cat "$$log"; echo "make check: FAILED" >&2; rc=1; }; rm -f "$$log"; exit $$rc

# Trainings in several processes, killed, stopped and compared; pages in a browser; the shipped jobs on a real Slurm.
.PHONY: test-long test-chosen
test-long: $(VENV)/.long slurm-packages browser-packages
	@echo "some 500 tests, many of which train in several processes: about 25 minutes on 2 cores" >&2
	@$(COMPILED) $(PYTEST) -n 4 $(PARALLEL) -m long --durations 15

# Of these, the ones that every change must pass.
test-chosen: $(VENV)/.long slurm-packages browser-packages
	@$(COMPILED) $(PYTEST) -n 4 $(PARALLEL) -m chosen --durations 15 $$(grep -rl --include='test_*.py' mark.chosen tests)

# Real containers, module systems, launchers and shells. What they need beyond Slurm is installed or fetched once, and kept.
# TABLE=1: what has run is written into docs/reference/what-has-run.md. HEAVY=1: what fetches large libraries or trains, too.
.PHONY: test-inside
test-inside: $(VENV)/.test inside-packages
	@$(if $(TABLE),SLURMGPU_WRITE_TABLE=1) $(BIN)/python -m pytest tests/inside -n 3 --dist loadfile \
	    -m "inside$(if $(HEAVY),, and not heavy)"
	@$(if $(TABLE),$(BIN)/python docs/reference.py)

# The entrypoint's tests where there is torch and nothing else of what slurmgpu needs, without pytest-xdist either: two
# runs at a time, of eight files each. QUICK=1: every module is imported, and one training killed and resumed.
.PHONY: test-torch-alone
test-torch-alone: $(VENV)/.test
	@folder=$$(mktemp -d) && python=$$($(BIN)/python tests/training/alone.py "$$folder") && \
	    if [ -n "$(QUICK)" ]; then $$python -m pytest -q -p no:cacheprovider tests/training/test_training_processes.py \
	        -k "every_module_of_the_entrypoint or killed_mid_epoch"; \
	    else ls tests/training/test_*.py | xargs -P 2 -n 8 $$python -m pytest -q -p no:cacheprovider; fi; \
	    rc=$$?; rm -rf "$$folder"; exit $$rc

# The same on other releases of Python and torch, as far as they can be had: some gigabytes, and half an hour.
.PHONY: test-torch-matrix
test-torch-matrix: $(VENV)/.test
	@$(BIN)/python tests/training/matrix.py

# The tests on a real Slurm, on other releases than the installed one. Of the long tests, those whose outcome lies with Slurm run,
# too. QUICK=1: without the long ones, and without the files whose outcome does not lie with the release.
OF_US := init two_users sandbox_faults logs after_silence doctor environments packing notify first_cause benchmarks
.PHONY: test-releases
test-releases: $(VENV)/.test release-packages
	@rc=0; for release in $(or $(RELEASES),20.11 22.05 24.11 26.05); do \
	    echo "--- Slurm $$release"; export SLURMGPU_TEST_RELEASES=$$release SLURMGPU_REQUIRE_SLURM=1; \
	    $(COMPILED) $(PYTEST) tests/slurm -n 4 $(PARALLEL) -m "not long" $(if $(QUICK),$(OF_US:%=--ignore tests/slurm/test_%.py)) || rc=1; \
	    $(if $(QUICK),,$(COMPILED) $(PYTEST) tests/slurm -n 4 $(PARALLEL) -m every_release || rc=1;) \
	    done; exit $$rc

# Everything, part by part, with one summary: hours. AGAIN=1: what has failed or not run; ONLY=training: what is about this.
.PHONY: test-all
test-all: $(VENV)/.long slurm-packages browser-packages release-packages inside-packages
	@$(COMPILED) .ci/test-all $(if $(filter-out 0 no,$(AGAIN)),--again) $(if $(ONLY),--only "$(ONLY)")

.PHONY: slurm-packages browser-packages release-packages inside-packages
slurm-packages:
	@.ci/install-slurm || [ $$? -eq 3 ]

browser-packages:
	@.ci/install-browser || [ $$? -eq 3 ]

release-packages:
	@.ci/install-slurm --releases || [ $$? -eq 3 ]

inside-packages:
	@.ci/install-slurm --inside || [ $$? -eq 3 ]

benchmark: $(VENV)/.test
	@$(BIN)/python benchmarks/startup.py

soak: $(VENV)/.test
	@$(BIN)/python benchmarks/soak.py
	@$(BIN)/python benchmarks/soak_own_loops.py

soak-sharded: $(VENV)/.test
	@rm -f benchmarks/results/soak_sharded.json
	@for strategy in fsdp2 pipeline; do \
	    $(BIN)/python benchmarks/soak.py --strategy $$strategy --kills 100 --damages 25 --flips 250 \
	        --json benchmarks/results/soak_sharded.json --add || exit 1; done

format: $(VENV)/.test
	@$(BIN)/ruff check --fix . .ci/test-all
	@$(BIN)/ruff format . .ci/test-all

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
