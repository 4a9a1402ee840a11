# One command each; every target first makes sure that what it needs is there.
.PHONY: help setup demo test check lint soak bench clean
.DEFAULT_GOAL := help

PYTHON := .venv/bin/python
# Machines boot and tests wait: one more worker than the two cores of the smallest host that this is meant for.
WORKERS ?= 3

help:
	@echo "make demo    set everything up and watch two LlamaIndex agents use microVMs"
	@echo "make test    every check and every test, real microVMs included"
	@echo "make check   lint, types, generated files, import table, sizes (no microVM)"
	@echo "make soak    the long tests at their whole lengths, about an hour"
	@echo "make bench   measure, and write bench/out/latest.json"
	@echo "make clean   stop the local service and remove what was made in this folder"

setup:
	@tools/setup

demo: setup
	@tools/demo

lint: setup
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	MYPYPATH=src:examples $(PYTHON) -m mypy --config-file pyproject.toml examples/*.py
	for tool in unasync copy_frames openapi settings_table; do $(PYTHON) tools/$$tool.py --check || exit 1; done

check: lint
	$(PYTHON) -m pytest -q tests/style

# The style tests are among them.
test: lint
	$(PYTHON) -m pytest -n $(WORKERS) --dist loadgroup

soak: setup
	RUNTIME_TEST_SOAK=whole $(PYTHON) -m pytest -s tests/system/test_soak.py \
		tests/system/test_money.py::test_killing_service_machines_and_guard_at_random_keeps_the_books

bench: setup
	$(PYTHON) -m bench

clean:
	@if [ -x .venv/bin/runtime ]; then .venv/bin/runtime server stop || true; fi
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/out dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
