PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
VENV_XLA := .venv-xla
VENV_AOT := .venv-aot-newest
PYTHON_NEWEST ?= python3.12
READY_XLA := $(VENV_XLA)/.ready
VENV_CLIENTS := .venv-clients
READY_CLIENTS := $(VENV_CLIENTS)/.ready
NODE_CLIENTS := @google-cloud/compute@6.15.0 @google-cloud/storage@7.22.0 @google-cloud/tpu@3.8.1 @kubernetes/client-node@1.4.0 googleapis@178.0.0
VENV_HOSTED := .venv-hosted
READY_HOSTED := $(VENV_HOSTED)/.ready
PYTHON_HOSTED ?= python3.12
PIP_HOSTED := $(VENV_HOSTED)/bin/python -m pip install --quiet --disable-pip-version-check

# The tests start tpuctl hundreds of times: an environment that forbids Python to keep what it
# has compiled makes each start a third slower.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-quick test-heavy test-failed test-beam test-torch test-xla test-aot-newest test-clients test-hosted test-kills lint docs smoke smoke-all bench bench-pipelines golden fuzz soak clean

setup: $(READY)  ## Make .venv with everything the other targets need.

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade -c constraints.txt pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,notebook,gcp,ssh,arrayrecord,plot,aot,lint]' --group dev --group docs
	touch $(READY)

demo: $(READY)  ## Run everything end to end: doctor, profile, presize, profile, train, report.
	$(BIN)/tpuctl demo

test: test-quick test-heavy  ## Everything that CI runs.

# A thread of pytest-timeout for each of thousands of tests would be a tenth of the time.
test-quick: $(READY)  ## Without TensorFlow, network, third-party clients and whole programs; under two minutes.
	$(BIN)/python -m pytest -n 2 -m 'not tf and not aot and not slow and not xla and not hosted and not clients and not soak' \
		-o timeout=0 -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

# Ends a worker that not even the thread of pytest-timeout can end, with every stack.
NO_HANG := -o faulthandler_timeout=660 -o faulthandler_exit_on_timeout=true

# Many of them wait: four keep two cores busy.
test-heavy: $(READY)  ## TensorFlow, JAX, libtpu's compiler, SSH, gRPC and HTTP, whole programs.
	$(BIN)/python -m pytest -n 4 --dist worksteal -m '(tf or aot or slow) and not hosted and not soak' $(NO_HANG)

test-failed: $(READY)  ## What failed in the last run, alone.
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-xla: $(READY_XLA)  ## The template of PyTorch/XLA, in its own environment (7 GB).
	$(VENV_XLA)/bin/python -m pytest -m xla tests/test_templates_xla.py

$(READY_XLA): pyproject.toml constraints.txt constraints-xla.txt
	$(PYTHON) -m venv $(VENV_XLA)
	$(VENV_XLA)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-xla.txt -e '.[images]' torch torch_xla scikit-learn hypothesis jsonschema pytest pytest-timeout
	touch $(READY_XLA)

test-aot-newest:  ## fit with the newest compiler that the extra aot allows, on Python 3.12 or newer (2 GB).
	$(PYTHON_NEWEST) -m venv $(VENV_AOT)
	$(VENV_AOT)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[aot]' 'pytest>=8.3' 'pytest-timeout>=2.3' 'hypothesis>=6.100' 'jsonschema>=4.20'
	$(VENV_AOT)/bin/python -m pytest -m aot tests/test_fit_compile.py tests/test_fit_failures.py

test-beam: $(READY)  ## --engine beam, in its own environment: Beam needs older libraries.
	$(PYTHON) -m venv $(VENV)-beam
	$(VENV)-beam/bin/python -m pip install --quiet --disable-pip-version-check -e '.[beam,images]' -c constraints-beam.txt \
		scikit-image scikit-learn pytest pytest-timeout hypothesis
	$(VENV)-beam/bin/python -m pytest -m beam tests/test_data_beam.py

test-torch: $(READY)  ## What needs PyTorch, in its own environment (gigabytes).
	$(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/python -m pip install --quiet --disable-pip-version-check -e '.[images]' \
		'torch>=2.5' 'scikit-image>=0.24' 'scikit-learn>=1.5' 'pytest>=8.3' 'pytest-timeout>=2.3' 'hypothesis>=6.100' 'jsonschema>=4.20'
	$(VENV)-torch/bin/python -m pytest -m 'not tf' tests/test_data_torch.py tests/test_watched_programs.py tests/test_profile_program.py tests/test_profile_sources.py

# gcloud starts slowly, and polls only every few seconds.
SLOW_CLIENTS := -o timeout=1500 -p no:unraisableexception

test-clients: $(READY_CLIENTS) $(VENV_CLIENTS)-node/.ready $(VENV_CLIENTS)-tools/.ready $(VENV_CLIENTS)-beam/.ready  ## gcloud and third-party clients with the emulator, in four environments (5 GB).
	$(VENV_CLIENTS)/bin/python -m pytest -n 4 $(SLOW_CLIENTS) -m clients tests/test_clients_compute.py tests/test_clients_storage.py tests/test_clients_tpu.py tests/test_clients_kubernetes.py tests/test_clients_node.py tests/test_clients_tools.py
	$(VENV_CLIENTS)-tools/bin/python -m pytest $(SLOW_CLIENTS) -m clients -k 'skypilot or dstack' tests/test_clients_tools.py
	$(VENV_CLIENTS)-beam/bin/python -m pytest $(SLOW_CLIENTS) -m clients -k 'beam or boto3' tests/test_clients_storage.py
	$(VENV_CLIENTS)/bin/python -m pytest -k kubernetes tests/test_gke_manifest.py

$(READY_CLIENTS): pyproject.toml constraints.txt constraints-clients.txt
	$(PYTHON) -m venv $(VENV_CLIENTS)
	$(VENV_CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-clients.txt -e '.[gcp,ssh,gke]' \
		google-api-python-client google-cloud-compute gcsfs obstore pyarrow tensorstore orbax-checkpoint jax tpuz tpunicorn2 tpu-runner tpu_pod_commander eopod ray zarr datasets 'smart_open[gcs]' 'cloudpathlib[gs]' polars deltalake gcloud-aio-storage kubernetes kr8s lightkube kubernetes-validate hypothesis jsonschema pytest pytest-timeout pytest-xdist
	touch $(READY_CLIENTS)

# Without npm, the tests of these are skipped.
$(VENV_CLIENTS)-node/.ready: Makefile
	mkdir -p $(@D)
	! command -v npm || npm install --silent --no-audit --no-fund --prefix $(@D) $(NODE_CLIENTS)
	touch $@

# These hold back libraries that the others have newer.
$(VENV_CLIENTS)-tools/.ready: TOOLS = -c constraints-clients.txt 'skypilot[gcp]' 'dstack[gcp]'
$(VENV_CLIENTS)-beam/.ready: TOOLS = -c constraints-beam.txt 'apache-beam[gcp]' boto3
$(VENV_CLIENTS)-tools/.ready $(VENV_CLIENTS)-beam/.ready: pyproject.toml constraints-clients.txt constraints-beam.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[gcp]' $(TOOLS) hypothesis jsonschema pytest pytest-timeout
	touch $@

test-hosted: $(READY) $(READY_HOSTED) $(VENV)-colab/.ready  ## The official command lines against the emulator, in an environment of their own.
	$(BIN)/python -m pytest -m hosted

test-kills: $(READY)  ## Every command on Colab, Kaggle and Compute Engine, struck at every request; hours.
	TPUCTL_ALL_KILLS=1 $(BIN)/python -m pytest -n 2 tests/test_hosted_kills.py tests/test_gce_kills.py

# kaggle 2.2.5 wants a certifi that did not exist when it was released, and does not declare six.
# Where they cannot be installed, the tests skip and say so.
$(READY_HOSTED): Makefile
	$(PYTHON_HOSTED) -m venv $(VENV_HOSTED) \
		&& $(PIP_HOSTED) bleach certifi jupytext packaging protobuf python-dateutil python-dotenv python-slugify requests six tqdm urllib3 \
		&& $(PIP_HOSTED) --no-deps kaggle==2.2.5 kagglesdk==0.1.38 \
		&& touch $(READY_HOSTED) || echo "Set PYTHON_HOSTED to a Python of at least 3.12."

$(VENV)-colab/.ready: Makefile
	$(PYTHON_HOSTED) -m venv $(VENV)-colab \
		&& $(VENV)-colab/bin/python -m pip install --quiet --disable-pip-version-check google-colab-cli==0.7.5 \
		&& touch $@ || echo "Set PYTHON_HOSTED to a Python of at least 3.12."

lint: $(READY)  ## ruff and mypy --strict.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p tpuctl -p tests

smoke: $(READY)  ## Install the wheel alone in a clean environment and run it.
	PYTHON=$(PYTHON) BIN=$(BIN) sh tests/smoke.sh

smoke-all: $(READY)  ## smoke on every Python, with the oldest and newest dependencies; uvx, mypy, pyright.
	BIN=$(BIN) sh tests/smoke_all.sh

docs: $(READY)  ## Build the site into site/; a warning fails. Look at it with: python3 -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

bench: $(READY)  ## Print every figure we promise, or those of NAMES (scale, ...), as ratios within one run.
	$(BIN)/python -m benchmarks $(NAMES)

bench-pipelines: $(READY)  ## profile run on pipelines after public ones, with PyTorch's (gigabytes, a quarter of an hour).
	$(PYTHON) -m venv $(VENV)-pipelines
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > $$($(VENV)-pipelines/bin/python -c 'import site; print(site.getsitepackages()[0])')/base.pth
	$(VENV)-pipelines/bin/python -m pip install --quiet --disable-pip-version-check \
		'torch>=2.5' torchvision timm webdataset datasets py-spy
	$(VENV)-pipelines/bin/python -m benchmarks.pipelines --out pipelines.md

soak: $(READY)  ## Interrupt every command at every point, in every way; watch for a day. Hours.
	$(BIN)/python -m tests.soak
	TPUCTL_ALL_KILLS=1 $(BIN)/python -m pytest -m soak
	FUZZ_EXAMPLES=60 $(BIN)/python -m pytest tests/test_remote_fuzz.py tests/test_provider_replies.py

golden: $(READY)  ## Rewrite the expected reports in tests/golden; read the diff before committing.
	$(BIN)/python -m pytest -q --update-golden $$(grep -lF 'golden(' tests/test_*.py)

fuzz: $(READY)  ## Other examples for every property; every parser for SECONDS (20) each (Python 3.11 to 3.13).
	$(BIN)/python -m pytest -n 2 --hypothesis-profile random -m 'not tf and not aot and not slow and not xla' \
		$$(grep -l hypothesis tests/test_*.py)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3'
	$(BIN)/python -m tests.fuzzing --seconds $(or $(SECONDS),20)

clean:
	rm -rf site $(VENV) $(VENV_XLA) $(VENV_AOT) $(VENV_CLIENTS) $(VENV_CLIENTS)-tools $(VENV_CLIENTS)-beam $(VENV_CLIENTS)-node $(VENV_HOSTED) $(VENV)-colab build dist .mypy_cache .pytest_cache .ruff_cache
