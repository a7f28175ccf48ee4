# What there is to do here. Every target sets up what it needs; the second run finds it ready.
#
#   make demo         the main job on real input, with faults on purpose (ARGS="--json" and so on)
#   make test-fast    the quick tests without a JVM and without other processes, in a minute
#   make test         all tests but the long ones, in some five minutes (ARGS="tests/service -k settle")
#   make test-long    a third of the tests that take seconds or minutes each, another third each day, and today's
#                     of `make test-matrix`; with ARGS, all that these name (ARGS=tests)
#   make test-kafka   the tests that need a real Apache Kafka, which it fetches by Maven and starts
#   make test-matrix  a chosen part of the tests on each version in .ci/matrix.txt (ON="oldest spark-4.1")
#   make pipelines    random programs on real Spark against an oracle (SEEDS=500 FROM=1)
#   make simulate     a cluster in virtual time, with every fault, against an oracle (SEEDS=500 FROM=1)
#   make bodies       random sink bodies on real Spark, against what they have written (SEEDS=500 FROM=1)
#   make fuzz         damaged input for everything that reads bytes from outside (INPUTS=1000000)
#   make schedules    random schedules of plain clients on real servers, with every fault (SEEDS=200 FROM=1)
#   make plain        random plain Spark programs on real servers, against what they did (SEEDS=200 FROM=1)
#   make check        format, lint, types, imports, generated code, the documents, the package, the alert rules
#   make docs         the documentation as a site in .build/site; fails for a broken link
#   make bench        the benchmarks, as a table and as JSON (.build/bench.json)
#   make bench-storm  likewise, beside Apache Storm from Maven Central
#   make proto        generate proto/acker_protocol/v1 anew
#   make constraints  pin anew what is installed (constraints.txt)
#   make clean        remove what these made, the virtual environment apart

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-long test-kafka test-matrix pipelines bodies simulate schedules plain fuzz check docs bench bench-storm proto proto-check constraints clean

ARGS ?=
ON ?=
SEEDS ?= 500
FROM ?= 1
VENV := .venv
READY := $(VENV)/.ready
GENERATOR := .build/generator
DOCS := .build/docs
BIN := $(VENV)/bin

# The first interpreter that is new enough.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

define NO_PYTHON
acker needs Python 3.11 or newer and found none on PATH; install one, or name it: make PYTHON=/path/to/python3.11
endef
define NO_VENV
$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu install python3-venv, or name another: make PYTHON=...
endef

# Spark runs on the JDK that is here (17 or newer), or on one from PyPI; its workers run on our interpreter.
WITH_SPARK = JAVA_HOME="$$(.ci/java-home)"; \
	export JAVA_HOME PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python" SPARK_LOCAL_IP=127.0.0.1;

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo >&2 "$(NO_PYTHON)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo >&2 "$(NO_VENV)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[service,spark,zookeeper,kafka,schema-registry,kinesis,s3,cli,progress]' --group dev
	@touch $@

demo: $(READY)
	@$(WITH_SPARK) $(BIN)/acker demo $(ARGS)

test: $(READY)
	@$(WITH_SPARK) $(BIN)/python -m pytest -n 3 --dist worksteal --durations=16 $(ARGS)

FAST := tests/client tests/contract tests/fuzz tests/protocol tests/service tests/simulation tests/source tests/spark
test-fast: $(READY)
	@$(BIN)/python -m pytest -m "not (slow or long or kafka or jvm or process)" -n 4 --dist worksteal $(FAST) $(ARGS)

test-long: $(READY)
	@$(WITH_SPARK) TESTS_OF_DAY=$(if $(ARGS),,$$(($$(date +%s) / 86400))) \
		$(BIN)/python -m pytest -m long -n 2 --dist worksteal --timeout 1800 --durations=40 $(ARGS)
	@test -n "$(ARGS)" || .ci/matrix run "$$(.ci/matrix today)"

test-kafka: $(READY)
	@command -v mvn > /dev/null || { echo >&2 "make test-kafka fetches Apache Kafka by Maven: install maven"; exit 1; }
	@$(WITH_SPARK) $(BIN)/python -m pytest -m kafka --timeout 900 $(ARGS)

# Those whose Python is here, unless named; which is not here is said.
test-matrix: $(READY)
	@ON="$(ON)"; .ci/matrix run $${ON:-$$(.ci/matrix names)}

pipelines: $(READY)
	@$(WITH_SPARK) $(BIN)/python -m tests.pipelines --seeds $(SEEDS) --from $(FROM) --shrink

bodies: $(READY)
	@$(WITH_SPARK) $(BIN)/python -m tests.pipelines.bodies --seeds $(SEEDS) --from $(FROM) --shrink

simulate: $(READY)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FROM) --processes 2 --shrink

schedules: SEEDS = 200
schedules: $(READY)
	@$(WITH_SPARK) $(BIN)/python -m tests.schedules --seeds $(SEEDS) --from $(FROM) --processes 3

INPUTS ?= 1000000
fuzz: $(READY)
	@$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seed $(FROM)

plain: SEEDS = 200
plain: $(READY)
	@$(WITH_SPARK) $(BIN)/python -m tests.plain --seeds $(SEEDS) --from $(FROM)

check: $(READY) proto-check
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tests/packaging/programs.py .build/programs
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --quiet tests/packaging/test_documents.py tests/packaging/test_links.py \
		tests/packaging/test_reference.py tests/packaging/test_rules.py
	rm -rf .build/dist && $(BIN)/python -m build --no-isolation --outdir .build/dist . > /dev/null
	$(BIN)/twine check --strict .build/dist/*
	tools="$$(.ci/prometheus)"; "$$tools/promtool" check config deploy/prometheus/prometheus.yml; \
		"$$tools/promtool" test rules tests/deploy/alerts.yaml

$(DOCS)/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo >&2 "$(NO_PYTHON)"; exit 1; }
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --upgrade pip
	$(DOCS)/bin/python -m pip install --quiet --constraint constraints.txt --group docs
	@touch $@

docs: $(DOCS)/.ready
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

bench: $(READY)
	@$(WITH_SPARK) $(BIN)/python -m benchmarks.run $(ARGS)

bench-storm: $(READY)
	@$(WITH_SPARK) $(BIN)/python -m benchmarks.run --storm $(ARGS)

# The oldest generator whose code runs on every grpcio from pyproject's floor up, in an environment of its own.
$(GENERATOR)/.ready:
	@test -n "$(PYTHON)" || { echo >&2 "$(NO_PYTHON)"; exit 1; }
	$(PYTHON) -m venv $(GENERATOR)
	$(GENERATOR)/bin/python -m pip install --quiet --disable-pip-version-check grpcio-tools==1.66.2 'setuptools<80'
	@touch $@

# $(call generate,FOLDER): the module path is mapped, so the code needs no edit to live in acker_protocol.
define generate
$(GENERATOR)/bin/python -m grpc_tools.protoc -I acker_protocol/v1=proto/acker/v1 \
	--python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) acker_protocol/v1/acker.proto
endef

proto: $(GENERATOR)/.ready
	$(call generate,proto)

proto-check: $(GENERATOR)/.ready
	@rm -rf .build/generated && mkdir -p .build/generated
	@$(call generate,.build/generated)
	@diff -ru --exclude=__init__.py --exclude=__pycache__ .build/generated/acker_protocol/v1 proto/acker_protocol/v1 \
		|| { echo >&2 "proto/acker_protocol/v1 is not what acker.proto generates: run make proto and commit it"; exit 1; }

# Every version that a clean environment with all extras gets, and nothing but versions.
constraints:
	@test -n "$(PYTHON)" || { echo >&2 "$(NO_PYTHON)"; exit 1; }
	rm -rf .build/constraints && $(PYTHON) -m venv .build/constraints
	.build/constraints/bin/python -m pip install --quiet --upgrade pip
	.build/constraints/bin/python -m pip install --quiet '.[all]' --group dev --group docs --group jdk
	.build/constraints/bin/python -m pip freeze --all --exclude acker --exclude setuptools > .build/constraints.txt
	mv .build/constraints.txt constraints.txt

clean:
	rm -rf .build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse out
