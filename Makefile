# `make` lists what there is to do. Everything runs in .venv, which `make setup` fills from constraints.txt.

PYTHON ?=
ENGINE ?= spark
TIMES ?= 100
FAULTS ?= 1

PYTHONS = $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python)
PIP_INSTALL = .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input -c constraints.txt
INSTALLED = .venv/.installed
# The demo installs only what it needs; where everything is installed, it takes that.
DEMO_INSTALLED = .venv/.installed-for-demo-$(ENGINE)
DEMO_EXTRAS = $(if $(filter spark,$(ENGINE)),spark$(comma)plot,plot)
DEMO_READY = $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(DEMO_INSTALLED))
comma = ,
# What pip says, one line for each package that it downloads.
PACKAGES := $(shell sed '/^\# What make/q' constraints.txt | grep -c ==)
PROGRESS = while read -r word what size; do case $$word in \
    Collecting) count=$$((count + 1)) ;; \
    Downloading) echo "  $$count$(OF_AT_MOST): $$what $$size" ;; \
    Installing) [ "$$what" = collected ] && echo "  Installing them" ;; \
    esac; done
# Three, because a test often waits for another process: with two, two cores are idle for a third of the time. Each
# starts a Spark session of its own when it comes to a test that needs one; where these tests are few, ONE_JVM runs
# them all in one process. In the order of their names: else files with few tests come last, which are the longest.
IN_PARALLEL = -n 3 --dist worksteal
ONE_JVM = -n 3 --dist loadgroup --no-loadscope-reorder
PURE = $(addprefix tests/,batching columnar expressions formats model settings test_errors.py)

.PHONY: help
help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=/path/to/python3.11 chooses the Python of setup, ENGINE=embedded a demo without Java."

.PHONY: setup
setup: $(INSTALLED) ## make .venv with everything in it (again only when pyproject.toml or constraints.txt change)

.PHONY: demo
demo: $(if $(filter spark,$(ENGINE)),require-java) announce-demo $(DEMO_READY) ## batch the bundled measurements, from files to a picture
	@.venv/bin/windrow demo --engine "$(ENGINE)"

.PHONY: announce-demo
announce-demo:
	@test -e $(DEMO_READY) || { \
	    echo "The demo first installs Windrow$(if $(filter spark,$(ENGINE)), and Spark) into .venv" \
	        "($(if $(filter spark,$(ENGINE)),about 1.4 GB,about 0.8 GB)), which takes a minute or more." ; \
	    echo "Then it groups 51,004 recorded measurements into batches, draws them, and says what to look at."; \
	}

.PHONY: test
test: require-java $(INSTALLED) ## run the tests
	@.venv/bin/python -m pytest $(ONE_JVM)

.PHONY: test-ci
test-ci: require-java $(INSTALLED) ## run the tests that CI runs after those of `make test`
	@.venv/bin/python -m pytest $(ONE_JVM) -m "ci and not browser and not slow and not kafka"

.PHONY: test-fast
test-fast: $(INSTALLED) ## run the tests of what is pure, without Spark and tables, with few examples: within a minute
	@HYPOTHESIS_PROFILE=fast .venv/bin/python -m pytest $(IN_PARALLEL) -m "not browser and not ci and not slow and not spark" $(PURE)

.PHONY: test-kafka
test-kafka: require-java $(INSTALLED) ## run the tests with a Kafka broker, which the first one downloads
	@.venv/bin/python -m pytest -m "kafka and not slow" tests/producer/bridge

.PHONY: test-orchestrators
test-orchestrators: $(INSTALLED) ## run the examples for Dagster and Airflow, which it installs first
	@$(PIP_INSTALL) --group orchestrators
	@.venv/bin/python -m pytest -m "not slow" tests/docs/test_orchestrators.py

.PHONY: test-browser
test-browser: $(INSTALLED) ## run the tests in Chromium, which must be installed
	@$(PIP_INSTALL) --group browser
	@.venv/bin/python -m pytest -m browser tests/ui

.PHONY: test-all
test-all: require-java $(INSTALLED) ## run the tests, the slow ones too, with 300 histories and examples each
	@HYPOTHESIS_PROFILE=all .venv/bin/python -m pytest $(IN_PARALLEL) -m "not browser"

.PHONY: test-nightly
test-nightly: require-java $(INSTALLED) ## run all tests with 10,000 histories and examples each, which takes a night
	@HYPOTHESIS_PROFILE=nightly .venv/bin/python -m pytest $(IN_PARALLEL) -m "not browser"

.PHONY: test-versions
test-versions: require-java $(INSTALLED) ## run a short suite on other versions of Python and Spark (ONLY=4.0.1)
	@.venv/bin/python -m tests.versions $(ONLY)

.PHONY: faults
faults: require-java $(INSTALLED) ## try every fault many times and count what was lost (TIMES=100)
	@.venv/bin/python -m tests.faults.trials --times $(TIMES) --guards
	@.venv/bin/python -m tests.faults.power --cuts $(TIMES)

.PHONY: explore
explore: $(INSTALLED) ## try every order in which drivers can work on one ledger, with at most FAULTS=1 faults each
	@.venv/bin/python -m tests.explorer --faults $(FAULTS)

.PHONY: explore-bugs
explore-bugs: $(INSTALLED) ## plant bugs and remove guards, one by one, and see which of them an exploration finds
	@.venv/bin/python -m tests.explorer --bugs --write
	@.venv/bin/python -m tests.explorer --guards --write

.PHONY: conformance
conformance: require-java $(INSTALLED) ## put Windrow and other writers through the same trials, which takes about an hour
	@.venv/bin/python -m tests.conformance

.PHONY: model
model: $(INSTALLED) ## check a model of the protocol, and that the checker finds planted bugs; needs spin and gcc (ONLY=outputs)
	@.venv/bin/python -m tests.checker --only "$(ONLY)"

.PHONY: peers
peers: require-java $(INSTALLED) ## measure what docs/comparison.md compares, which takes about an hour
	@.venv/bin/python -m benchmarks.peers

.PHONY: bench
bench: require-java $(INSTALLED) ## measure what docs/performance.md tells, which takes about an hour (ONLY="kernel batch")
	@.venv/bin/python -m benchmarks $(ONLY)

.PHONY: mutants
mutants: $(INSTALLED) ## change kernel, clock and step piece by piece, list what no test notices (ONLY=lib/windrow/model/clock.py)
	@$(PIP_INSTALL) --group mutants
	@nice -n 15 .venv/bin/python -m tests.mutants $(ONLY)

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

.PHONY: wheel
wheel: $(INSTALLED) ## build dist/windrow_delta-VERSION-py3-none-any.whl, the same bytes from the same sources
	@.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-input --no-deps \
	    --build-constraint constraints.txt --wheel-dir dist .
	@ls dist/*.whl

JAVA_DIR = lib/windrow/engine/spark/java
LOG_STORE = $(JAVA_DIR)/log_store.jar
JARS = $(wildcard .venv/lib/*/site-packages/pyspark/jars/hadoop-client-api-*.jar $(HOME)/.ivy2*/jars/io.delta_delta-storage-*.jar)

# Stored, not compressed: else the bytes depend on the zlib of the JDK.
.PHONY: log-store
log-store: ## compile the log store for S3, which needs a JDK of Java 17
	@rm -rf build/log-store
	@javac --release 17 -g:none -nowarn -cp "$$(echo $(JARS) | tr ' ' :)" -d build/log-store $(JAVA_DIR)/windrow/*.java
	@jar --create --no-compress --no-manifest --date=2026-01-01T00:00:00Z --file $(LOG_STORE) \
	    -C build/log-store windrow/ConditionalLogStore.class

.PHONY: reference
reference: require-java $(INSTALLED) ## write what the docs take from the code: docs/reference, guards, results of queries
	.venv/bin/python docs/reference/generate.py
	.venv/bin/python -m tests.guards --write
	WRITE_DOCS=1 .venv/bin/python -m pytest -q -m "not browser" tests/docs/test_blocks.py

.PHONY: notebooks
notebooks: $(INSTALLED) ## write notebooks/jupyter/*.ipynb from the notebooks in Databricks' format
	@.venv/bin/python notebooks/jupyter/make_notebooks.py

.PHONY: docs
docs: $(INSTALLED) ## build the site of docs/ in site/ (open site/index.html); a broken link fails
	@$(PIP_INSTALL) --group docs
	@.venv/bin/zensical build --clean --strict

.PHONY: pictures
pictures: $(INSTALLED) ## make the pictures of docs/pictures.md from the bundled measurements
	@$(PIP_INSTALL) --group pictures
	@.venv/bin/python docs/pictures/make_pictures.py

.PHONY: clean
clean: ## remove .venv, builds and caches (tables under data/ and demo/ stay)
	rm -rf .venv .versions build dist site .cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf derby.log metastore_db spark-warehouse
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamp comes last, so that a setup that was interrupted starts again.
$(INSTALLED): NEEDED = -e '.[all]' --group test --group stores --group check
$(INSTALLED): OF_AT_MOST = $(empty) of at most $(PACKAGES)
$(DEMO_INSTALLED): NEEDED = -e '.[$(DEMO_EXTRAS)]'
$(INSTALLED) $(DEMO_INSTALLED): pyproject.toml constraints.txt
	@for python in $(PYTHONS); do \
	    version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); \
	    case $$version in 3.11|3.12|3.13) break ;; esac; \
	    version=; \
	done; \
	if [ -z "$$version" ]; then \
	    echo "Windrow needs Python 3.11, 3.12 or 3.13, and found none of them as: $(PYTHONS)."; \
	    echo "Install one (Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv; macOS: brew install python@3.13)"; \
	    echo "or say where it is: make setup PYTHON=/path/to/python3.11"; \
	    exit 1; \
	fi >&2; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python cannot make a virtual environment, its venv module is missing."; \
	    echo "Install it (Debian, Ubuntu: apt-get install python$$version-venv)."; \
	    exit 1; \
	fi >&2; \
	echo "Setting up .venv with Python $$version; the first time takes a few minutes."; \
	.venv/bin/python -m pip --version 2>/dev/null | grep -qF "(python $$version)" || "$$python" -m venv --clear .venv
	@$(PIP_INSTALL) pip
	@rm -f $@
	@{ $(subst --quiet,,$(PIP_INSTALL)) --build-constraint constraints.txt $(NEEDED) && touch $@; } | $(PROGRESS)
	@test -e $@

# Spark starts the Java of JAVA_HOME, or else the one on the path.
.PHONY: require-java
require-java:
	@java=$${JAVA_HOME:+$$JAVA_HOME/bin/}java; \
	version=$$("$$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1); \
	if [ "$${version:-0}" -lt 17 ]; then \
	    if [ -n "$$version" ]; then echo "Spark needs Java 17 or later, and $$java is older."; \
	    else echo "Spark needs Java 17 or later, and $$java does not start."; fi; \
	    echo "Install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17)."; \
	    echo "Without Java: make demo ENGINE=embedded, or after make setup .venv/bin/pytest -m 'not slow and not spark'"; \
	    exit 1; \
	fi >&2
