# `make run` and `make test` do all set-up themselves, in .venv; nothing is installed outside this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test quick live agents demo torture bench lint clean
.DELETE_ON_ERROR:

run: $(VENV)/ready
	@$(BIN)/python -m compileall -q lib  # every tick would do it, where Python is told to write no bytecode
	$(BIN)/python scheduler.py tick
	@echo
	$(BIN)/python scheduler.py list
	@echo
	$(BIN)/python scheduler.py history --limit 5

# More workers than cores: some tests wait for real time (cron's minute, SIGTERM's grace) and need no processor. Without bytecode
# each of them would translate all tests anew, every time.
test: $(VENV)/ready-dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 4 --dist worksteal

# The part that needs few processes and no waiting: decisions, readers, the store, documents, and a few real ticks. Under a minute.
QUICK := base time schedule tasks failure store workspace governor/test_governor.py governor/test_governor_properties.py \
	alerts/test_deliver_text.py ui/test_help.py ui/test_add.py run/test_recording.py project/test_architecture.py project/test_docs.py
quick: $(VENV)/ready-dev
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 4 --dist worksteal $(addprefix tests/,$(QUICK))

# Real ticks across a change of the clock that really happens: about 5 minutes, so not part of `make test`.
live: $(VENV)/ready-dev
	$(BIN)/python -m pytest tests/live -n 2 -o faulthandler_timeout=400

# The real Claude Code against a server on loopback that plays the model: make agents CLAUDE=/path/to/claude
agents: $(VENV)/ready-dev
	TICKDOWN_TEST_CLAUDE="$(CLAUDE)" $(BIN)/python -m pytest tests/agents/test_real_claude.py -n 2

# Healing, with scripts in the place of agents.
demo: $(VENV)/ready
	tests/demo/heal.sh

# Every kind of fault with fresh seeds, for as long as you like: make torture SECONDS=120, some of it: ONLY=kill, again: SEED=…
SECONDS ?= 120
torture: $(VENV)/ready-dev
	-@$(MAKE) --no-print-directory tests/faults/.venv/ready
	$(BIN)/python -m tests.faults --seconds $(SECONDS) $(if $(ONLY),--only "$(ONLY)") $(if $(SEED),--seed "$(SEED)")

# What it costs, beside what it is compared to; about 45 minutes. Some of it: make bench ONLY=idle,burst
bench: $(VENV)/ready
	-@$(MAKE) --no-print-directory bench/.venv/ready
	@$(BIN)/python -m compileall -q lib
	$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) bench/.venv tests/faults/.venv .mypy_cache .ruff_cache .pytest_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=…"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) -m venv failed; on Debian install python3-venv"; exit 1; }

$(VENV)/ready: requirements.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/ready-dev: requirements-dev.txt requirements.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@ $(VENV)/ready

# The other schedulers, apart from everything else. Without them their rows say that they were not measured.
bench/.venv/ready: bench/requirements.txt
	$(PYTHON) -m venv bench/.venv
	bench/.venv/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt
	@touch $@

# The coverage-guided fuzzer of `make torture`, which has no wheel for every machine. Without it that kind is not tried.
tests/faults/.venv/ready: tests/faults/requirements.txt requirements.txt
	$(PYTHON) -m venv tests/faults/.venv
	tests/faults/.venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/faults/requirements.txt
	@touch $@
