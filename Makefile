# `make` lists what there is to do. Everything runs in .venv, which `make setup` fills from constraints.txt.

PYTHON ?=
ENGINE ?= spark

PYTHONS = $(or $(PYTHON),python3.11 python3.12 python3 python)
PIP_INSTALL = .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt
INSTALLED = .venv/.installed
# One process has the Spark session and the tests that use it, the other one the rest.
IN_PARALLEL = -n 2 --dist loadgroup

.PHONY: help
help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=/path/to/python3.11 chooses the Python of setup, ENGINE=embedded a demo without Java."

.PHONY: setup
setup: $(INSTALLED) ## make .venv with everything in it (again only when pyproject.toml or constraints.txt change)

.PHONY: demo
demo: $(if $(filter spark,$(ENGINE)),require-java) $(INSTALLED) ## batch the bundled measurements, from files to a picture
	@.venv/bin/windrow demo --engine "$(ENGINE)"

.PHONY: test
test: require-java $(INSTALLED) ## run the tests
	@.venv/bin/python -m pytest $(IN_PARALLEL)

.PHONY: test-all
test-all: require-java $(INSTALLED) ## run the tests, the slow ones too
	@.venv/bin/python -m pytest $(IN_PARALLEL) -m "slow or not slow"

.PHONY: check
check: $(INSTALLED) ## lint, check format, types and who imports whom
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports

.PHONY: format
format: $(INSTALLED) ## sort imports and format
	.venv/bin/ruff check --quiet --select I --fix
	.venv/bin/ruff format

.PHONY: reference
reference: require-java $(INSTALLED) ## write what the docs take from the code: docs/reference, results of queries
	.venv/bin/python docs/reference/generate.py
	WRITE_DOCS=1 .venv/bin/python -m pytest -q tests/docs/test_blocks.py
