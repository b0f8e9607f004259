# Every target works from a fresh clone: it makes .venv and builds the package first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
NATIVE := $(wildcard native/*) CMakeLists.txt pyproject.toml

.PHONY: demo test lint format bench mnist sanitize clean

demo: $(VENV)/installed
	$(BIN)/gkmeans demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

lint: $(VENV)/installed-dev $(VENV)/installed-faiss: $(VENV)/installed-%: $(VENV)/bin/python $(NATIVE)
	@echo "Building gkmeans and installing what it needs (about half a minute) ..."
	$(BIN)/python -m pip install -q -e ".[$*]"
	touch $(VENV)/installed $@

clean:
	rm -rf .venv .venv-sanitize build
