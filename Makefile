# make demo    train the example on this machine with two processes
# make test    install what the tests need (Debian's Slurm too) and run them all
# make check   lint, format, types, import contracts
# make chaos N=50   runs on that cluster, hit N times by random causes; compares bits
# make bench   ask all questions about speed again; writes docs/performance.md
# make slurm   a real Slurm cluster on this machine, to play with; make slurm-down ends it
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

SLURM_PACKAGES := slurmctld slurmd slurm-client slurmdbd munge mariadb-server iproute2 strace

.PHONY: demo test check chaos bench slurm slurm-down clean

demo: $(VENV)/.demo
	$(BIN)/python -m clusterddp.submit jobs/exp.yaml --launcher pytorch

test: $(VENV)/.test slurm-packages
	$(BIN)/python -m pytest -n 2

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

N ?= 50
chaos: $(VENV)/.test slurm-packages
	$(BIN)/python -m benchmarks.chaos $(N)

bench: $(VENV)/.bench slurm-packages
	$(BIN)/python -m benchmarks

slurm: $(VENV)/.test slurm-packages
	@$(BIN)/python -m tests.cluster up

slurm-down:
	@$(BIN)/python -m tests.cluster down

# Without root (or without apt) the tests that need Slurm skip, and say so.
.PHONY: slurm-packages
slurm-packages:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    ! dpkg -s $(SLURM_PACKAGES) >/dev/null 2>&1; then \
	    apt-get update -q && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -q -y --no-install-recommends $(SLURM_PACKAGES); fi

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: setup.cfg constraints.txt | $(BIN)/python
	$(PIP) -e '.[examples]'
	@touch $@

$(VENV)/.test: setup.cfg constraints.txt | $(BIN)/python
	$(PIP) -e '.[examples,test]'
	@touch $@ $(VENV)/.demo

$(VENV)/.check: setup.cfg constraints.txt | $(BIN)/python
	$(PIP) -e '.[examples,test,check]'
	@touch $@ $(VENV)/.test $(VENV)/.demo

$(VENV)/.bench: setup.cfg constraints.txt | $(BIN)/python
	$(PIP) -e '.[examples,test,bench]'
	@touch $@ $(VENV)/.test $(VENV)/.demo

clean:
	rm -rf $(VENV) build *.egg-info
