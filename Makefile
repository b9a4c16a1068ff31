# The commands of this project. `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready
UPSTREAM ?= mock
STORE ?= file
MINUTES ?= 30
SEED ?=
PARTITIONS ?= 100
EXAMPLES ?= 24
CASE ?=
UV := uv==0.13.8
# Hundreds of processes would each compile all that they import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv check format test test-all oracle strange bounds demo bench bench-tail bench-replay bench-outage bench-fanin bench-archive bench-connections bench-hostile bench-metadata bench-workers bench-pipeline bench-appetite bench-cluster soak chaos drill-cluster docs sbom lock clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 19

venv: $(READY)  ## create .venv with everything that demo and tests need from the Python registry

# A second run checks the stamp and calls pip only if the lock or pyproject.toml has changed.
$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "fetchproxy needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Choose another: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(READY)

TEST_FOLDERS = $(shell find $(CURDIR)/tests -mindepth 1 -type d ! -name __pycache__ | paste -s -d : -)
TEST_FILES = $(shell find $(CURDIR)/tests -mindepth 2 -name '*.py' ! -name conftest.py)

check: venv  ## lint, formatting, types, import layers
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy lab benchmarks chaos rehearsal
	@# From another folder, mypy would find some of these files a second time, as `tests.metadata`.
	@echo mypy tests
	@cd tests/packaging && PYTHONPATH=$(CURDIR) MYPYPATH=$(TEST_FOLDERS):$(CURDIR)/protocol \
		$(CURDIR)/$(BIN)/mypy --config-file ../mypy.ini --cache-dir $(CURDIR)/.mypy_cache $(TEST_FILES)
	$(BIN)/lint-imports

format: venv  ## let ruff format and fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: venv  ## check, set up the real parts, run every test that is not slow
	$(BIN)/python tests/make_test/run_folders.py --check '$(MAKE) --no-print-directory check' --setup \
		'$(BIN)/python -m lab setup kafka kafka-newest s3 gcs azure hdfs kerberos clients prometheus spark-newest balancers helm' \
		-m "not slow"

test-all: check  ## the same with the slow tests
	$(BIN)/python -m lab setup kafka kafka-oldest kafka-3.9 kafka-newest s3 rclone gcs azure hdfs kerberos clients balancers helm frameworks prometheus rust spark spark-oldest spark-4.1 spark-4.2 spark-newest
	$(BIN)/python -m pytest

oracle: venv  ## 10,000 generated steps against Kafka's own tiered storage; ORACLE_SEED=N for others
	$(BIN)/python -m lab setup kafka kafka-newest
	$(BIN)/python -m pytest tests/oracle

strange: venv  ## logs that Kafka may hold, generated, through every part and store; EXAMPLES=N SEED=N for others
	$(BIN)/python -m lab setup kafka s3 gcs azure hdfs
	STRANGE_EXAMPLES=$(EXAMPLES) STRANGE_SEED=$(or $(SEED),0) $(BIN)/python -m pytest tests/strange $(wildcard tests/*/test_strange_*.py)

bounds: venv  ## generated attacks on running processes; SECONDS=N SEED=N for others, CASE=… for one
	BOUNDS_SECONDS=$(if $(filter command line,$(origin SECONDS)),$(SECONDS),60) BOUNDS_SEED=$(or $(SEED),0) $(if $(CASE),BOUNDS_CASE=$(CASE)) \
		$(BIN)/python -m pytest -s tests/bounds -k chosen

demo: venv  ## the whole story in a minute; UPSTREAM=mock|kafka STORE=file|s3|gcs|azure|hdfs
	$(BIN)/python -m demo --upstream $(UPSTREAM) --store $(STORE)

bench: venv  ## every benchmark, in 45 minutes: tables, and JSON and SVG in benchmarks/results
	$(BIN)/python -m lab setup kafka s3 kroxylicious
	$(BIN)/python -m benchmarks

bench-tail: venv  ## what a tail read costs: direct, through the proxy, through a peer
	$(BIN)/python -m lab setup kafka kroxylicious
	$(BIN)/python -m benchmarks tail

bench-replay: venv  ## replaying history: the archive, Kafka's own tiered storage, raw range reads
	$(BIN)/python -m lab setup kafka s3
	$(BIN)/python -m benchmarks replay

bench-outage: venv  ## what the tail feels of a store that hangs, is slow, gone or wrong
	$(BIN)/python -m lab setup kafka s3
	$(BIN)/python -m benchmarks outage

bench-fanin: venv  ## what 100 consumers of the same history read from the store
	$(BIN)/python -m lab setup kafka s3
	$(BIN)/python -m benchmarks fanin

bench-archive: venv  ## how fast a topic is archived, next to a consumer that only reads it
	$(BIN)/python -m lab setup kafka s3
	$(BIN)/python -m benchmarks archive

bench-connections: venv  ## what thousands of connections and partitions cost
	$(BIN)/python -m lab setup kafka
	$(BIN)/python -m benchmarks connections

bench-hostile: venv  ## what the tail feels of clients without credentials that do their worst
	$(BIN)/python -m lab setup kafka
	$(BIN)/python -m benchmarks hostile

bench-metadata: venv  ## what the metadata of 2.6 million segments costs: memory, cold start, look-ups
	$(BIN)/python -m benchmarks metadata

bench-workers: venv  ## what a second worker adds where clients speak TLS, and what a second bare relay adds
	$(BIN)/python -m lab setup kafka
	$(BIN)/python -m benchmarks workers

bench-pipeline: venv  ## reading the archive on Spark, next to Spark's Kafka source on a broker
	$(BIN)/python -m lab setup kafka spark
	$(BIN)/python -m benchmarks.pipeline

bench-appetite: venv  ## what a stock librdkafka client reads: direct, through the proxy without pacing and with it
	$(BIN)/python -m lab setup kafka
	$(BIN)/python -m benchmarks.appetite
	$(BIN)/python -m benchmarks.applications

bench-cluster: venv  ## how long a lost cluster takes to come back, and what its recovery point costs
	$(BIN)/python -m lab setup kafka
	$(BIN)/python -m benchmarks.cluster

soak: venv  ## half an hour of Kafka, S3, retention and faults: is memory flat? MINUTES=N for others
	$(BIN)/python -m lab setup kafka s3
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

chaos: venv  ## three brokers, two archivers, two proxies and S3, broken by seed; MINUTES=N SEED=N
	$(BIN)/python -m lab setup kafka s3
	$(BIN)/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

drill-cluster: venv  ## a loaded cluster is lost with its disks and restored: PARTITIONS=N GROUPS=N KAFKA=VERSION SEED=N
	$(BIN)/python -m lab setup kafka kafka-3.9 kafka-newest
	$(BIN)/python -m rehearsal --partitions $(PARTITIONS) --groups $(or $(GROUPS),10) \
		$(if $(KAFKA),--kafka $(KAFKA)) $(if $(SEED),--seed $(SEED))

docs: $(DOCS_READY)  ## the documentation as static files in site/; no network once its tools are there
	$(DOCS_VENV)/bin/mkdocs build

sbom: venv  ## sbom.cdx.json: the image's Python packages as a CycloneDX bill of materials
	$(BIN)/python -m lab.sbom > sbom.cdx.json

# In a folder of their own: what the site's builder needs must not decide on versions of the product.
$(DOCS_READY): requirements/docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	touch $(DOCS_READY)

lock: venv  ## resolve pyproject.toml and requirements/docs.in anew into requirements/*.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV)
	$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' --extra encryption -o requirements/base.txt
	$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' --constraints requirements/base.txt --extra dev -o requirements/dev.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["kerberos"], sep="\n")' | $(BIN)/uv pip compile - --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' -o requirements/kerberos.txt
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' | $(BIN)/uv pip compile - --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' -o requirements/build.txt
	$(BIN)/uv pip compile requirements/docs.in --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'make lock' -o requirements/docs.txt

clean:  ## remove .venv and everything that tools left in the tree (the lab's cache stays)
	rm -rf $(VENV) $(DOCS_VENV) sbom.cdx.json .demo build site dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
