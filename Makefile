# Every target sets up what it needs by itself, once: see scripts/setup.

# The lock, and so the development environment, holds the extra `all` of pyproject.toml.
# `make lock UPGRADE=--upgrade` moves every pinned version on, `make lock` only what must move.
UPGRADE :=

BIN := .venv/bin
SHELL := bash
.SHELLFLAGS := -o pipefail -c

.PHONY: setup setup-tests demo test test-most test-java test-browser screenshots chaos chaos-load check audit format dist bench bench-broker bench-topics bench-pairing bench-syphon bench-distance scale reference lock clean
ifndef SIDE_BY_SIDE
.NOTPARALLEL:
endif

setup:
	@scripts/setup

setup-tests:
	@scripts/setup --tests

demo: setup
	@$(BIN)/pairbus demo

BROWSER := tests/browser
ALONE := tests/chaos tests/pairing/test_outage.py tests/syphon/test_outage.py tests/amqp/client/test_rabbitmq.py
JAVA := tests/syphon tests/verify tests/demo/test_command.py tests/test_benchmarks.py

# Compiled files are kept even where the environment says otherwise: the tests start hundreds of
# Python processes, and each would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

# Three groups run side by side, because the tests of each wait a lot. Each line of output
# begins with the name of its group.
test: setup-tests
	@$(MAKE) --no-print-directory --jobs=3 SIDE_BY_SIDE=1 test-most test-java test-browser

SHOWN = $(if $(SIDE_BY_SIDE),2>&1 | sed --unbuffered 's/^/$(@:test-%=%): /')

# The official SDK sleeps half a second to open a link and as long to close it, so many more tests
# run at once than there are cores. They have a lower priority than the other groups, which are
# more sensitive to load. First one process collects them, so that the others find them compiled.
test-most: setup-tests
	@nice $(BIN)/pytest --collect-only -qq >/dev/null
	nice $(BIN)/pytest -n 12 --dist worksteal -m "not spark" $(ALONE:%=--ignore=%) --ignore=$(BROWSER) $(SHOWN)

# The tests of the data source share one Java machine in one process; beside others that start Java,
# Spark's workers start too late. Then, file by file, tests that kill and flood brokers or start
# RabbitMQ, which mostly wait, beside the others that start Java.
test-java: setup-tests
	$(BIN)/pytest -m spark tests/spark $(SHOWN)
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "alone or spark" $(JAVA) $(ALONE) $(SHOWN)

# The dashboard in the system's Chromium: one pair, one browser, one process for all of it.
test-browser: setup-tests
	$(BIN)/pytest $(BROWSER) $(SHOWN)

# docs/dashboard/*.png
screenshots: setup-tests
	$(BIN)/python -m tests.browser.screenshots

# Everything goes wrong at once, and every message is counted: see docs/reliability.md.
# `make chaos SECONDS=1800 SEED=2026 ARGS="--report chaos.html"`
SECONDS := 60
SEED := $(shell date +%s)

chaos: setup-tests
	$(BIN)/python -m tests.chaos.nemesis --seconds $(SECONDS) --seed $(SEED) $(ARGS)

# 200 connections, 1,000 queues and outages: memory, files, threads and latency must not grow.
chaos-load: SECONDS := 600
chaos-load: setup-tests
	$(BIN)/python -m tests.chaos.load --seconds $(SECONDS) --seed $(SEED) $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src tests/typing
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/calls.py
	@$(BIN)/python scripts/audit

# Known vulnerabilities of the pinned packages. Without a network it says so, and fails nothing.
audit: setup
	@$(BIN)/python scripts/audit

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Writes docs/benchmarks.md. `make bench ARGS=--quick` only shows that it works; see ARGS=--help.
bench: setup
	$(BIN)/python benchmarks/bench.py $(ARGS)

bench-broker: setup
	$(BIN)/python benchmarks/broker.py $(ARGS)

bench-topics: setup
	$(BIN)/python benchmarks/topics.py $(ARGS)

bench-pairing: setup
	$(BIN)/python benchmarks/pairing.py $(ARGS)

# Starts Java machines, as does the next one.
bench-syphon: setup
	$(BIN)/python benchmarks/syphon.py $(ARGS)

bench-distance: setup
	$(BIN)/python benchmarks/distance.py $(ARGS)

# The tables and plots of docs/scale.md: a simulation, which takes some minutes.
scale: setup
	$(BIN)/python benchmarks/scale.py --write $(ARGS)

# docs/reference.md, out of docstrings.
reference: setup
	$(BIN)/python scripts/reference

# No index is written into the lock, so it says what to install and not where from.
lock: setup
	@$(BIN)/python -m pip install --quiet uv
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/uv pip compile pyproject.toml --quiet \
	  --group dev --extra all --universal --python-version 3.11 $(UPGRADE) \
	  --generate-hashes --no-emit-index-url --no-annotate --output-file requirements.lock
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/uv pip compile --group proton --no-deps --quiet \
	  --universal --python-version 3.11 $(UPGRADE) \
	  --generate-hashes --no-emit-index-url --no-annotate --output-file requirements-proton.lock
	UV_CUSTOM_COMPILE_COMMAND='make lock' $(BIN)/uv pip compile --group oldest-spark --no-deps --quiet \
	  --universal --python-version 3.11 $(UPGRADE) \
	  --generate-hashes --no-emit-index-url --no-annotate --output-file requirements-oldest-spark.lock

# The wheel and the source archive, in dist/.
dist: setup
	$(BIN)/python -m hatchling build

clean:
	rm -rf .venv .setup tests/interop/node/node_modules tests/browser/node_modules dist \
	  .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
