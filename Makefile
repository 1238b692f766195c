# Headgate's targets; `make` alone lists them. What they need is installed into .venv/.

VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Slow tests wait more than they compute, so more of them run simultaneously.
CPUS := $(shell nproc)
WORKERS := $(shell echo $$(( $(CPUS) + 1 )))
SLOW_WORKERS := $(shell echo $$(( $(CPUS) * 3 / 2 + 1 )))

# Containers set it. Then each process compiles all that it imports, and takes twice the CPU to start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo screenshot run test slow sim lint format typecheck verify-units bench chaos fuzz minio check-store spark-archive constraints dist client sbom release-check first-record kafka-suite clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(VENV)/.stamp ## Make .venv with Headgate and its tools, unless it is up to date

$(VENV)/.stamp: pyproject.toml constraints.txt
	@PYTHON='$(PYTHON)' sh tools/setup.sh $(VENV)
	@touch $@

demo: setup ## Start a daemon in a temporary folder; write, compact and read sample records; stop it
	@$(BIN)/python -m tools.demo

screenshot: setup ## Make docs/page.png, the page of a daemon on MinIO under a small load (two minutes, needs Chromium)
	@$(BIN)/python -m tools.screenshot docs/page.png

run: setup ## Run the daemon on ./headgate-data in the foreground until Ctrl-C
	@exec $(BIN)/headgate serve --data headgate-data

test: lint typecheck ## Check style, types and floors, and run all tests except the slow ones
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m 'not slow'

slow: setup ## Run the slow tests: real overload, kills, long simulations, all examples
	HEADGATE_LONG=1 $(PYTEST) -n $(SLOW_WORKERS) --dist loadgroup --durations 20 -m 'slow or hypothesis'

sim: setup ## Simulate the protocol (SEED=1 SEEDS=1 STEPS=50000 SIM=); prints a failing seed and the end of its log
	$(BIN)/python -m tests.sim --seed $(or $(SEED),1) --seeds $(or $(SEEDS),1) --steps $(or $(STEPS),50000) $(SIM)

lint: setup ## Check style and format with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

typecheck: setup ## Check types (mypy, strict) and the floors (import-linter)
	$(BIN)/mypy
	PYTHONPATH=clients/python $(BIN)/lint-imports --no-logo

verify-units: ## Check the systemd units and their hardening (needs systemd-analyze)
	@sh tools/verify_units.sh

bench: setup ## Measure throughput, CPU and PUTs; prints a table, writes JSON to bench/results/
	$(BIN)/python -m bench $(BENCH)

fuzz: setup ## Send a daemon what no client should, and check what it does (SECONDS=60 SEED=1)
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1) $(FUZZ)

chaos: setup ## Kill and fault a daemon under load, and check the history (SECONDS=60 SEED=1)
	PYTHONPATH=clients/python $(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1) $(CHAOS)

minio: setup ## Start a MinIO with a bucket, and print how to serve on it
	@exec $(BIN)/python -m tools.minio

check-store: setup ## Run tests of the store, and a daemon that is killed, against STORE=URL of any S3 server (docs/stores.md)
	HEADGATE_TEST_STORE=$(STORE) $(PYTEST) -q tests/uploader/stores/test_s3.py
	HEADGATE_TEST_STORE=$(STORE) $(PYTEST) -q tests/e2e/test_recovery.py -m s3

kafka-suite: setup ## Run SUITE=librdkafka|franz-go, whose source is in SOURCE=DIR, against a daemon (docs/kafka.md)
	$(BIN)/python -m tests.suites $(SUITE) $(SOURCE)

spark-archive: setup ## Make dist/headgate-spark.zip, for spark-submit --py-files
	@$(BIN)/python -m compaction.archive dist

constraints: setup ## Write the versions installed in .venv, and their hashes, to constraints.txt
	@sh tools/constraints.sh $(BIN)/python

dist: setup ## Make the wheel in dist/, for `pipx install` and the Dockerfile
	@sh tools/dist.sh $(BIN)/python dist

client: setup ## Make the wheel of the Python client in dist/
	@sh tools/client_dist.sh $(BIN)/python dist

sbom: dist ## Make dist/headgate.cdx.json: what an installation of the wheel consists of (CycloneDX)
	@sh tools/sbom.sh $(BIN) dist

release-check: dist client spark-archive sbom ## Build all that a release has into dist/, with checksums
	@sh tools/release.sh dist

first-record: dist ## Show how long it takes from the wheel to the first record read back
	@sh tools/first_record.sh $(BIN)/python dist

clean: ## Remove .venv, caches and build outputs, but not ./headgate-data
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
