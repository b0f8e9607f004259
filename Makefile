# Every target works from a fresh clone: it makes .venv and builds the package first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := $(wildcard native/*) CMakeLists.txt pyproject.toml

.PHONY: demo test lint format bench cluster frontier mnist reproduce sanitize clean

demo: $(VENV)/installed
	$(BIN)/gkmeans demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror native/*

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i native/*

# Needs the data sets under GKMEANS_DATA; an hour, most of it Faiss's training: its rotations of MNIST are slow.
bench: $(VENV)/installed-faiss
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/encode.py
	$(BIN)/python benchmarks/products.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/pursuit.py
	$(BIN)/python benchmarks/cartesian.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/cost.py

# Training over Dask on two processes against fit: minutes.
cluster: $(VENV)/installed-dev
	$(BIN)/python benchmarks/cluster.py

# Distortion over time against Faiss, three data sets at three lengths, with pictures in results/: hours.
frontier: $(VENV)/installed-faiss $(VENV)/installed-reproduce
	$(BIN)/python benchmarks/frontier.py

# All of MNIST at three lengths and two orders: about half an hour.
mnist: $(VENV)/installed
	$(BIN)/python benchmarks/mnist.py

# Every table and figure of the paper on MNIST, which lies under GKMEANS_DATA or is downloaded: hours, and it resumes.
reproduce: $(VENV)/installed-reproduce
	$(BIN)/gkmeans reproduce all --dataset mnist

# The kernels under the address and undefined-behaviour sanitizers, in an environment of its own.
sanitize:
	$(PYTHON) -m venv .venv-sanitize
	.venv-sanitize/bin/python -m pip install -q -U pip
	.venv-sanitize/bin/python -m pip install -q -Cbuild-dir=build/sanitize -Ccmake.define.GKMEANS_SANITIZE=ON -e ".[test]"
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0 \
	.venv-sanitize/bin/python -m pytest -p no:cacheprovider tests -m native

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -U pip

$(VENV)/installed: $(VENV)/bin/python $(NATIVE)
	@echo "Building gkmeans and installing what it needs (about half a minute) ..."
	$(BIN)/python -m pip install -q -e .
	touch $@

$(VENV)/installed-dev $(VENV)/installed-faiss $(VENV)/installed-reproduce: $(VENV)/installed-%: $(VENV)/bin/python $(NATIVE)
	@echo "Building gkmeans and installing what it needs (about half a minute) ..."
	$(BIN)/python -m pip install -q -e ".[$*]"
	touch $(VENV)/installed $@

clean:
	rm -rf .venv .venv-sanitize build
