VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
WORKERS ?= 2
ENGINES ?= .engines
ENVOYS ?= .envoys

.PHONY: run test install check unit oldest-envoy bench conformance test-engines test-envoys faults soak test-image test-schemas protos goldens reference clean

run: install  ## Start simulated engines, Envoy and kvpicker; show a demonstration
	$(BIN)/kvpicker up

test: install check unit  ## All checks and all tests

install: $(VENV)/.installed  ## Make the virtual environment

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[envoy,kv-events]' --group dev
	touch $@

check: install  ## Style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: install oldest-envoy  ## The tests
	ENVOYS_CACHE=$(abspath $(ENVOYS)) $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope

oldest-envoy: install  ## Install the oldest Envoy that is supported under $(ENVOYS), 28 MB to fetch
	$(BIN)/python -m tests.envoys --cache $(ENVOYS) --install-oldest

bench: install  ## Speed against a no-op server; the last line is one JSON object
	$(BIN)/python -m benchmarks.wire

test-engines: install  ## Real vLLM engines and peers, in environments under $(ENGINES); the last line is one JSON object
	$(BIN)/python -m tests.engines --cache $(ENGINES)

test-envoys: install  ## All profiles and emulated gateways on every version of Envoy; a table, and one JSON object
	$(BIN)/python -m tests.envoys --cache $(ENVOYS)

conformance: install  ## kvpicker against the Endpoint Picker protocol and Envoy's rules, in every body mode
	$(BIN)/python -m tests.conformance

faults: install  ## Break everything under load, about a quarter of an hour; the last line is one JSON object
	$(BIN)/python -m tests.fault $(FAULTS)

SOAK_MINUTES ?= 20
soak: install  ## 100 endpoints that come and go under mixed load; fails if anything grows
	$(BIN)/python -m tests.fault.soak --minutes $(SOAK_MINUTES)

test-image: install  ## What the image's build installs, in a fresh environment, without a container engine
	$(BIN)/python -m tests.image

SCHEMAS ?= .schemas
test-schemas: install  ## Objects of Gateway API and Istio against their whole schemas, the chart by Helm; needs npm
	npm install --silent --no-save --prefix $(SCHEMAS) @kubernetes-models/gateway-api @kubernetes-models/istio js-yaml
	for profile in istio envoy-gateway; do $(BIN)/kvpicker envoy-config --profile $$profile --tls-ca ca --tls-name x.test \
		--tls-client ca --output $(SCHEMAS)/$$profile.yaml; done
	node tests/schemas/check.mjs $(SCHEMAS) deploy/kustomize/overlays/*/gateway.yaml $(SCHEMAS)/*.yaml
	test -x $(SCHEMAS)/helm/bin/python || $(PYTHON) -m venv $(SCHEMAS)/helm
	$(SCHEMAS)/helm/bin/python -m pip install --quiet 'helm-python-sdk>=0.2'  # Helm itself, without its command
	$(BIN)/python -m tests.schemas --python $(SCHEMAS)/helm/bin/python

protos: install  ## Generate ext_proc/wire/_pb from protos/
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. protos/ext_proc/wire/_pb/*.proto

goldens: install  ## Render the configurations of Envoys and the objects of gateways again
	for golden in $$(grep -rl '^# Rendered by: ' envoy deploy/kustomize); do $(BIN)/$$(sed -n '1s/^# Rendered by: //p' $$golden) --output $$golden; done

reference: install  ## Rewrite the generated tables of the documentation
	$(BIN)/python -m ext_proc.reference

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
