# `make` lists the targets. They need only Python 3.11 or newer: each target first creates the
# environments that it uses.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV ?= .venv
BIN := $(VENV)/bin

# The first interpreter that is new enough and can create a virtual environment.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 \
	$(HOME)/.pyenv/versions/3.1[1-9]*/bin/python3; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$p" && break; done)

# The locks are complete, and `pip check` verifies them: pip resolves nothing.
PIP_INSTALL := -m pip --disable-pip-version-check --no-input install --quiet --require-hashes --no-deps

# The number of processes that run the tests.
WORKERS ?= auto

# Workers and the processes that tests start import the same modules: each is compiled once.
unexport PYTHONDONTWRITEBYTECODE

define new_environment
@[ -n "$(PYTHON)" ] || { echo "No Python >= 3.11 that can create virtual environments was found: \
	install it (with its venv module) or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
@echo "installing $(1) into $(2) with $$($(PYTHON) --version)"
@[ ! -e $(2)/bin/python ] || $(2)/bin/python -c '' 2>/dev/null || rm -rf $(2)
@[ -x $(2)/bin/python ] || $(PYTHON) -m venv $(2)
@$(2)/bin/python $(PIP_INSTALL) $(3) -r $(1)
@$(2)/bin/python -m pip --disable-pip-version-check check >/dev/null || $(2)/bin/python -m pip check
endef

define install_project
@$(1)/bin/python -m pip --disable-pip-version-check uninstall --quiet --quiet --yes kanon  # the name until 0.1.0
@$(1)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
	--no-index --no-deps --no-build-isolation --editable .
endef

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- environments -----------------------------------------------------------------------------

$(VENV)/.requirements: requirements/dev.txt
	$(call new_environment,requirements/dev.txt,$(VENV))
	@touch $@

$(VENV)/.project: $(VENV)/.requirements pyproject.toml
	$(call install_project,$(VENV))
	@touch $@

# The interpreter compiles the imported modules at their first use; compiling everything would take longer than the rest
# of the installation. A new environment of Python 3.11 has setuptools, 8 MB that are not needed.
.venv-demo/.project .venv-local/.project: .venv-%/.project: requirements/%.txt pyproject.toml
	$(call new_environment,$<,.venv-$*,--no-compile)
	@.venv-$*/bin/python -m pip --disable-pip-version-check uninstall --quiet --quiet --yes setuptools
	$(call install_project,.venv-$*)
	@touch $@

.venv-demo/.log: requirements/log.txt .venv-demo/.project
	$(call new_environment,requirements/log.txt,.venv-demo,--no-compile)
	@touch $@

.venv-%/.requirements: requirements/%.txt
	$(call new_environment,$<,.venv-$*)
	@touch $@

.venv-spark/.project: .venv-spark/.requirements pyproject.toml
	$(call install_project,.venv-spark)
	@touch $@

.PHONY: install
install: $(VENV)/.project .venv-ministack/.requirements  ## create the environments (.venv, .venv-ministack)

.PHONY: lock
lock: $(VENV)/.requirements  ## write the pinned requirements from requirements/*.in (UPGRADE=1: newest versions)
	@pin() { $(BIN)/uv pip compile --quiet $(if $(UPGRADE),--upgrade) --generate-hashes --universal \
		--python-version 3.11 --no-header --no-annotate --no-emit-index-url \
		requirements/$$1.in --output-file $$2 "$${@:3}"; }; \
	pin dev requirements/dev.txt; \
	pin layer shared/requirements.txt --constraint requirements/dev.txt; \
	pin sealing shared/sealing.txt --constraint requirements/dev.txt; \
	pin credentials shared/credentials.txt --constraint requirements/dev.txt; \
	for function in evaluate gateway list sweep; do \
		pin $$function functions/$$function/requirements.txt --constraint requirements/dev.txt; \
	done; \
	for function in store jobs decrypt aggregate rotate; do \
		pin reports-$$function functions/reports/$$function/requirements.txt --constraint requirements/dev.txt; \
	done; \
	pin lambda-runtime requirements/lambda-runtime.txt; \
	pin ministack requirements/ministack.txt; \
	pin demo requirements/demo.txt --constraint requirements/dev.txt; \
	pin local requirements/local.txt; \
	pin log requirements/log.txt --constraint requirements/dev.txt; \
	pin serve requirements/serve.txt --constraint requirements/dev.txt; \
	pin sam requirements/sam.txt; \
	pin spark requirements/spark.txt --constraint requirements/dev.txt; \
	pin rivals requirements/rivals.txt; \
	pin clients requirements/clients.txt; \
	pin site requirements/site.txt; \
	pin security requirements/security.txt

# --- run --------------------------------------------------------------------------------------

KANON := .venv-demo/bin/kanon
FLEDGE := {"k": 50, "window": 720, "profile": "crossing"}

.PHONY: demo
demo: .venv-demo/.project  ## replay a log of joins and show the result (LOG=file.csv.gz FROM=2017-07-01 TO=2017-08-31 ARGS=...)
	@$(KANON) demo $(if $(LOG),--log "$(LOG)") $(if $(FROM),--from "$(FROM)") $(if $(TO),--to "$(TO)") $(ARGS)

.PHONY: simulate
simulate: .venv-demo/.log  ## simulate the answers of types on a log, and their price (LOG=file.csv.gz ARGS="--k 20,50 --window 168,720")
	@$(KANON) simulate "$(or $(LOG),$(error name a join log: make simulate LOG=joins.csv))" $(ARGS)

.PHONY: demo-reports
demo-reports: .venv-local/.project  ## encrypt a log as reports, aggregate them here or in a service, check every number (MODE=kanon; URL=http://127.0.0.1:8000 or STACK=name)
	@.venv-local/bin/kanon reports $(if $(URL)$(STACK),demo-service $(if $(URL),--url "$(URL)") $(if $(STACK),--stack "$(STACK)"),demo) \
		$(if $(MODE),--mode "$(MODE)") $(if $(LOG),--log "$(LOG)") $(ARGS)

.PHONY: serve
serve: .venv-demo/.project  ## run the service on this machine, with short steps and open joins (PORT=8000 DATA=build/data TYPES=types.json ARGS=...)
	@exec $(KANON) serve --data "$(or $(DATA),build/data)" --period 10 --join-auth OPEN \
		$(if $(TYPES),--types "$(TYPES)",--type '$(FLEDGE)') $(if $(PORT),--port "$(PORT)") $(ARGS)

.PHONY: rehearse
rehearse: .venv-local/.project  ## run the stack on an AWS emulator until stopped (PORT=8000 PERIOD=10 ARGS=...)
	@exec .venv-local/bin/kanon serve $(if $(PORT),--port "$(PORT)") $(if $(PERIOD),--period "$(PERIOD)") $(ARGS)

WEB := clients/typescript

.PHONY: client
client: $(WEB)/node_modules/.installed  ## pack the TypeScript client into build/kanon-client.tgz (needs Node 20)
	@mkdir -p build && cd $(WEB) && npm run build --silent && npm pack --silent --pack-destination "$(abspath build)" >/dev/null
	@mv build/kanon-client-*.tgz build/kanon-client.tgz && echo build/kanon-client.tgz

.PHONY: example
example: $(WEB)/node_modules/.installed  ## open a page whose search terms a service counts (SERVICE=http://127.0.0.1:8000 PORT=5173 RELAY= ACCOUNT=; needs Node 20)
	@cd $(WEB) && npm run build --silent
	@exec node examples/search-terms/start.js $(or $(SERVICE),http://127.0.0.1:8000) $(or $(PORT),5173) "$(RELAY)" "$(ACCOUNT)"

# --- check ------------------------------------------------------------------------------------

# What `make test` leaves to `make test-whole`: whole services, crashes, enumerations and distributions, each of seconds.
WHOLE := tests/e2e tests/faults tests/proofs tests/statistical
PARTS := $(filter-out $(WHOLE) tests/build tests/clients tests/deployed,$(patsubst %/,%,$(dir $(wildcard tests/*/__init__.py))))
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.PHONY: test
test: install  ## run the tests of every part (ARGS="tests/unit -k laws")
	@$(PYTEST) $(if $(findstring tests/,$(ARGS)),,$(PARTS)) $(ARGS)

.PHONY: test-whole
test-whole: install  ## run the tests of the whole: services end to end, crashes, proofs, statistics (ten minutes)
	@$(PYTEST) $(WHOLE) $(ARGS)

.PHONY: unit
unit: install  ## run only the quick unit tests (half a minute)
	@$(PYTEST) -m "not slow and not prove" tests/unit $(ARGS)

.PHONY: replay
replay: install  ## replay sixty days of a real log, compare every answer and row with the recorded ones (minutes)
	@$(BIN)/python -m pytest -m replay tests/e2e/gate tests/integration/cost $(ARGS)

.PHONY: faults
faults: install  ## make every AWS call fail in every way, and run workers in hundreds of random orders (CAPABILITY=gate: minutes; all: an hour; FAULTS=every: each call)
	@FAULTS=$(or $(FAULTS),all) $(BIN)/python -m pytest --numprocesses $(WORKERS) tests/faults/$(CAPABILITY) \
		--ignore-glob '*test_bad_input*' $(ARGS)

.PHONY: load
load: install  ## put the local stack under load at several rates, look up every acknowledged join (ARGS="--rates 5")
	@$(BIN)/python -m tests.faults.gate.load $(ARGS)

.PHONY: fuzz
fuzz: install  ## send thousands of bad inputs to the API, to every parser and to every command (EXAMPLES=2000)
	@FUZZ_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest --numprocesses $(WORKERS) \
		tests/faults/gate/test_bad_input_http.py tests/faults/gate/test_bad_input_parsers.py \
		tests/unit/cli/test_every_command.py tests/integration/cli/test_joinlog_batches.py $(ARGS)

.PHONY: bench
bench: install  ## measure cost relative to bare libraries; needs all commits of git (ARGS=--short: two minutes; ARGS=--keep: ten minutes, into docs/evidence)
	@$(BIN)/python -m bench $(ARGS)

.PHONY: lint
lint: $(VENV)/.project  ## check style and likely bugs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo --no-cache

.PHONY: format
format: $(VENV)/.project  ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: types
types: $(VENV)/.project  ## check the types
	@$(BIN)/mypy

# Code: ruff's rules S are bandit's; `make lint` applies them too. Templates: .checkov.yaml lists the skipped checks
# with reasons. The tests show that both tools find planted weaknesses and that every exception is needed. They also
# check the requirements.
.PHONY: security
security: $(VENV)/.project .venv-security/.requirements  ## find weak code, weak settings, unpinned requirements (offline)
	@$(BIN)/ruff check --select S,PLE2502 --ignore S101 .
	@.venv-security/bin/checkov --config-file .checkov.yaml
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) -m "security or sweep or not build" \
		tests/infrastructure/test_requirements.py tests/infrastructure/test_weaknesses.py \
		tests/infrastructure/test_sweep.py $(ARGS)

.PHONY: audit-dependencies
audit-dependencies: .venv-security/.requirements  ## ask PyPI for known vulnerabilities of the pinned packages (needs the internet)
	@failed=; for file in requirements/*.txt shared/*.txt functions/*/requirements.txt functions/reports/*/requirements.txt; do echo "$$file"; \
		.venv-security/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off --requirement "$$file" \
		|| failed="$$failed $$file"; done; [ -z "$$failed" ] || { echo "known vulnerabilities:$$failed" >&2; exit 1; }

.PHONY: audit
audit: install  ## compare mechanism and service with the exact distribution, and check that the audit finds planted bugs (45 minutes)
	@$(BIN)/kanon audit --trials 100000 --service-trials 500
	@for type in published,720 balanced,720 sharp,168; do \
		$(BIN)/kanon audit --trials 2000 --service-trials 0 --json \
			--type "{\"k\": 50, \"window\": $${type#*,}, \"profile\": \"$${type%,*}\"}" || exit 1; \
	done
	@$(BIN)/python -m pytest -m audit tests/statistical tests/e2e/local/test_replay.py tests/integration/cost -s $(ARGS)

define need_node
@node -e 'process.exit(Number(parseInt(process.versions.node) < 20))' 2>/dev/null && command -v npm >/dev/null || \
	{ echo "Node 20 or newer with npm was not found: install it from https://nodejs.org" >&2; exit 1; }
endef

$(WEB)/node_modules/.installed: $(WEB)/package-lock.json
	$(call need_node)
	@cd $(WEB) && npm ci --ignore-scripts --loglevel=error
	@touch $@

.PHONY: web-test
web-test: install $(WEB)/node_modules/.installed  ## test the TypeScript client in Node and in Chromium, with its size, the example and the guide (a minute; needs Node 20)
	@cd $(WEB) && KANON_PYTHON="$(abspath $(BIN)/python)" npm test --silent

.PHONY: relay-test
relay-test: install  ## run the relay of docs/guides/relay.md with a real nginx, and clients through it (needs nginx)
	@$(BIN)/python -m pytest -m relay tests/integration/gateway/test_relay.py $(ARGS)

.PHONY: spark-test
spark-test: .venv-spark/.project  ## run `kanon release` on Spark and compare it with DuckDB (needs Java 17; minutes)
	@.venv-spark/bin/python -m pytest --noconftest -m spark tests/integration/release/test_spark.py $(ARGS)

.PHONY: tpch
tpch: install .venv-rivals/.requirements  ## make the data of TPC-H and check the group counts of the reference tables
	@$(BIN)/python -m tests.vectors.tpch $(ARGS)

.PHONY: rivals
rivals: install .venv-rivals/.requirements  ## compare `kanon release` with other libraries on one job (LOG=file.csv.gz)
	@$(BIN)/python -m bench.rivals "$(LOG)"

.PHONY: prove
prove: install  ## run every enumeration and search behind the privacy proof (minutes)
	@$(BIN)/python -m pytest tests/proofs -m "$(or $(PROVE),prove or not prove)" -s $(ARGS)

.PHONY: paper
paper: install  ## redraw the paper's Figure 1 and the profiles' curves, print their numbers
	@$(BIN)/kanon plan --paper docs/figure-1.png
	@$(BIN)/kanon plan --compare --plot docs/profiles.png

# What draws diagrams and sets formulas is pinned like a package: version and hash.
MERMAID := mermaid-12.3.0
TEMML := temml-0.13.5

define npm_package
$(call need_node)
@mkdir -p build && cd build && npm pack --silent "$(subst -,@,$(1))" >/dev/null
@echo "$(2)  build/$(1).tgz" | sha256sum --check --quiet
endef

build/$(MERMAID).min.js:
	$(call npm_package,$(MERMAID),be0684e8d20bfc874df12c0f04927a5c482f57f2200eec54cca52a4583fd4040)
	@tar --extract --to-stdout --file build/$(MERMAID).tgz package/dist/mermaid.min.js > $@

build/$(TEMML)/temml.cjs:
	$(call npm_package,$(TEMML),bca5b76dd26d1d6c81f8d817f6cc8bf0f0a1a7787512e281d5c22b986f8ae582)
	@mkdir -p build/$(TEMML)
	@tar --extract --directory build/$(TEMML) --strip-components 2 --touch --file build/$(TEMML).tgz package/dist

.PHONY: site
site: .venv-site/.requirements build/$(MERMAID).min.js build/$(TEMML)/temml.cjs  ## write the documentation as a site into build/site (needs Node 20)
	$(call need_node)
	@.venv-site/bin/python -m infra.site build/$(MERMAID).min.js build/$(TEMML)
	@echo build/site/index.html

.PHONY: site-test
site-test: install site  ## write the site and test its formulas (needs Node 20)
	@$(BIN)/python -m pytest -m site tests/infrastructure/test_site.py $(ARGS)

.PHONY: openapi
openapi: $(VENV)/.project  ## write the OpenAPI description from the code
	@$(BIN)/python -m infra.openapi

.PHONY: reference
reference: $(VENV)/.project  ## write docs/reference/cli.md and the outputs of docs/guides/cost.md
	@$(BIN)/python -m infra.reference

.PHONY: template
template: $(VENV)/.project .venv-sam/.requirements  ## check template.yaml and its nested templates
	@$(BIN)/cfn-lint --append-rules cfn_lint_serverless.rules -- template.yaml infra/*.yaml
	@SAM_CLI_TELEMETRY=0 .venv-sam/bin/sam validate --lint

.PHONY: build-test
build-test: install .venv-sam/.requirements  ## build for AWS and for this machine, and test the builds
	@$(BIN)/python -m pytest -m build $(ARGS)

.PHONY: e2e
e2e: install build-host  ## deploy to an emulator that enforces permissions, and run the requests of the demo
	@$(BIN)/python -m pytest -m deployed tests/deployed $(ARGS)

tests/clients/node_modules/.package-lock.json: tests/clients/package-lock.json
	$(call need_node)
	@cd tests/clients && npm ci --ignore-scripts --no-audit --no-fund --loglevel error

.PHONY: clients-test
clients-test: install .venv-clients/.requirements tests/clients/node_modules/.package-lock.json  ## generate clients from docs/openapi.json and use them (needs Node 20)
	@$(BIN)/python -m pytest -m clients tests/clients $(ARGS)

.PHONY: smoke
smoke: $(VENV)/.project  ## send every kind of request to a deployed service once (URL=https://...)
	@$(BIN)/python -m infra.smoke "$(URL)"

# --- build and deploy -------------------------------------------------------------------------

# The platform on AWS. The build installs wheels for it, so it needs neither Docker nor that Python here.
RUNTIME ?= python3.13
ARCHITECTURE ?= arm64
BUILD_DIR ?= .aws-sam/build
HOST_BUILD_DIR ?= .aws-sam/host

# The parts of the nested stacks infra/lists.yaml and infra/reports.yaml.
LISTS := ListsLayer List Released
REPORTS := ReportsLayer Collect Store Jobs Decrypt Aggregate Rotate

# The platform of this machine.
HOST_RUNTIME = $(shell $(BIN)/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
HOST_ARCHITECTURE := $(if $(filter arm64 aarch64,$(shell uname -m)),arm64,x86_64)

# SAM passes neither runtime nor architecture to a makefile, so shared/Makefile reads them from the environment.
# uv installs only wheels with a known hash.
.PHONY: build
build: .venv-sam/.requirements  ## build the functions and the layer (RUNTIME=python3.13 ARCHITECTURE=arm64)
	@PATH="$(CURDIR)/.venv-sam/bin:$$PATH" SAM_CLI_TELEMETRY=0 UV_REQUIRE_HASHES=1 UV_NO_BUILD=1 \
		KANON_BUILD_PYTHON=$(RUNTIME:python%=%) KANON_BUILD_ARCHITECTURE=$(ARCHITECTURE) \
		.venv-sam/bin/sam build --beta-features --no-cached --build-dir $(BUILD_DIR) \
		--parameter-overrides Runtime=$(RUNTIME) Architecture=$(ARCHITECTURE)
	@for part in Shared SealingLayer CredentialsLayer CredentialsStack/Issuer Join Query Evaluate Sweep AnonymousStack/Gateway $(LISTS:%=ListsStack/%) $(REPORTS:%=ReportsStack/%); do find $(BUILD_DIR)/$$part -type f -printf '%s\n' | \
		awk -v part=$${part#*/} '{s += $$1} END {printf "%-12s %5.1f MB\n", part, s / 1e6}'; done

.PHONY: release
release: $(VENV)/.project build  ## build sdist, wheel and the layer's zip into dist/, the same bytes every time
	@$(BIN)/python -m infra.distribution --layer $(BUILD_DIR)/Shared

.PHONY: build-host
build-host: $(VENV)/.project  ## build for this machine, into .aws-sam/host
	@$(MAKE) --no-print-directory build RUNTIME=$(HOST_RUNTIME) ARCHITECTURE=$(HOST_ARCHITECTURE) \
		BUILD_DIR=$(HOST_BUILD_DIR)
