"""The rules of the source: one straight line of imports, no print, no pickle, docstrings, and nothing too long."""

import ast
import inspect
import pathlib
import re

import pytest

import gkmeans as gk
from gkmeans import _core

SOURCE = pathlib.Path(gk.__file__).parent
NATIVE = pathlib.Path(__file__).parents[1] / "native"
FILES = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
LINES, FUNCTION_LINES = 400, 60

# the way data flows; a module imports only what stands before it
LINE = [
    *(
        "_core",
        "_parallel",
        "_sums",
        "_solve",
        "_frame",
        "_rows",
        "_stream",
        "_progress",
        "_files",
        "_lock",
        "_formats",
        "_vecs",
        "_batched",
        "vectors",
    ),
    *("products", "steps", "dictionaries", "_validation", "batches", "assignment", "pursuit"),
    *(
        "update",
        "passes",
        "survey",
        "_packing",
        "checkpoint",
        "rotation",
        "training",
        "initialization",
        "initialization.random",
        "initialization.kmeans",
    ),
    *(
        "initialization.hierarchical",
        "initialization.grown",
        "narrowing",
        "shrinkage",
        "folds",
        "relaxation",
        "encoding",
        "streaming",
    ),
    *(
        "estimators",
        "estimators.saving",
        "estimators.coding",
        "estimators.base",
        "estimators.merging",
        "estimators.relaxing",
        "estimators.group",
    ),
    *("estimators.cartesian", "estimators.optimized_cartesian", "baselines"),
    *("store", "_download", "datasets", "_top", "metrics", "index", "index.lookup"),
    *("index.segment", "index.filters", "index.scan", "index.disk", "index.base", "index.flat", "index.partition"),
    *("index.coarse", "index.lists", "index.probes", "index.ivf", "index.opened", "index.suggest", "encode_files"),
    *("distributed.tasks", "distributed.shards", "distributed.arrays", "distributed"),
    *("interop", "interop.faiss", "__init__"),
    *("experiments.paper",),
    *("experiments.methods",),
    *("experiments.subject", "experiments.store", "experiments.run", "experiments.fits", "experiments.report"),
    *("experiments.pictures", "experiments.scan", "experiments.pursued", "experiments.table1", "experiments.table2"),
    *("experiments.figure1", "experiments.figure2", "experiments", "reproduce", "cli"),
]


def module_name(file):
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(file, tree):
    """Modules of the package that ``file`` imports, anywhere in it, relative to the package."""
    package = ["gkmeans", *file.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target == "gkmeans" or target.startswith("gkmeans."):
                yield longest_module(target.removeprefix("gkmeans").removeprefix("."))


def longest_module(target):
    """The module that holds ``target``: ``training`` for ``training.Run``, ``__init__`` for a name of the package."""
    parts = target.split(".")
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((name for name in names if name in LINE), "__init__")


def tree_of(file):
    return ast.parse(FILES[file].read_text(), file)


def test_every_module_has_its_place_in_the_line():
    assert {module_name(file) for file in FILES} | {"_core"} == set(LINE)
    assert len(LINE) == len(set(LINE))


@pytest.mark.parametrize("file", FILES)
def test_a_module_imports_only_what_stands_before_it(file):
    here = LINE.index(module_name(file))
    late = [name for name in imported(file, tree_of(file)) if LINE.index(name) >= here]
    assert not late, f"{file} imports {late}"


def test_the_check_of_imports_sees_every_way_to_import():
    ways = {
        "import gkmeans.cli": "cli",
        "import gkmeans": "__init__",
        "from gkmeans import cli as c": "cli",
        "from gkmeans.cli import app": "cli",
        "from .. import cli": "cli",
        "from ..training import Run": "training",
        "from .group import GroupKMeans": "estimators.group",
        "from . import group": "estimators.group",
        "def f():\n    from .. import load": "__init__",
    }
    for code, module in ways.items():
        assert list(imported("estimators/base.py", ast.parse(code))) == [module]
    assert not list(imported("update.py", ast.parse("import os\nfrom numpy import load")))
    assert list(imported("update.py", ast.parse("from . import _core\nfrom .cli import app"))) == ["_core", "cli"]


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_printed(file):
    calls = [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call)]
    assert not [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]
    written = [node.lineno for node in calls if ast.unparse(node.func) in ("sys.stdout.write", "sys.stderr.write")]
    assert not written


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_pickled(file):
    tree = tree_of(file)
    names = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    names |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not names & {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "joblib.load", "joblib.dump"):
            assert [ast.unparse(k.value) for k in node.keywords if k.arg == "allow_pickle"] == ["False"], node.lineno


@pytest.mark.parametrize("file", FILES)
def test_a_module_opens_with_what_it_does(file):
    assert ast.get_docstring(tree_of(file))


@pytest.mark.parametrize("file", FILES)
def test_only_one_module_starts_threads(file):
    if file == "_parallel.py":
        return
    text = FILES[file].read_text()
    assert not re.search(r"ThreadPool|threading|threadpoolctl|multiprocessing|joblib", text)


def public_things():
    for name in gk.__all__:
        thing = getattr(gk, name)
        yield name, thing
        if inspect.isclass(thing):
            for attribute in dir(thing):
                owner = next((cls for cls in thing.__mro__ if attribute in vars(cls)), None)
                if not attribute.startswith("_") and owner is not None and owner.__module__.startswith("gkmeans"):
                    member = inspect.getattr_static(thing, attribute)
                    if callable(getattr(thing, attribute)) or isinstance(member, property):
                        yield f"{name}.{attribute}", getattr(thing, attribute)
        if inspect.ismodule(thing):
            for attribute, member in vars(thing).items():
                if not attribute.startswith("_") and getattr(member, "__module__", None) == thing.__name__:
                    yield f"{name}.{attribute}", member


PUBLIC = dict(public_things())


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_have_docstrings(name):
    assert inspect.getdoc(PUBLIC[name])
    own = PUBLIC[name].__doc__
    assert own, f"{name} only inherits its docstring"
    assert len(own.strip()) > 20


def test_public_names_are_those_of_the_design():
    estimators = ("GroupKMeans", "CartesianKMeans", "OptimizedCartesianKMeans")
    assert {*estimators, "FlatIndex", "IVFIndex", "open_index", "load", "datasets", "DataWarning", "FileError"} <= set(
        gk.__all__
    )
    methods = "fit encode decode relative_distortion transform inverse_transform score save"
    assert {f"{name}.{method}" for name in estimators for method in methods.split()} <= set(PUBLIC)
    assert all(hasattr(gk, name) for name in gk.__all__)
    assert gk.__all__ == sorted(gk.__all__)


def test_the_version_is_that_of_the_project():
    text = (NATIVE.parent / "pyproject.toml").read_text()
    assert f'version = "{gk.__version__}"' in text


def test_the_package_is_typed():
    assert (SOURCE / "py.typed").exists()


def functions_of(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("file", FILES)
def test_python_files_and_functions_stay_short(file):
    assert len(FILES[file].read_text().splitlines()) < LINES
    for node in functions_of(tree_of(file)):
        length = node.end_lineno - node.lineno + 1
        assert length < FUNCTION_LINES, f"{node.name} has {length} lines"


NATIVE_FILES = sorted(path.name for path in NATIVE.iterdir() if path.suffix in (".inl", ".hpp", ".cpp"))


def native_functions(text):
    """(first line, length) of each function at the outermost level: from the line that opens it to a } on its own."""
    lines = text.splitlines()
    start = None
    for number, line in enumerate(lines):
        opens = re.match(r"^(?!namespace|struct|class|enum|extern|#|//|\s)\S.*", line)
        if start is None and opens and re.search(r"\(", line) and not line.rstrip().endswith(";"):
            start = number
        if start is not None and line.startswith("}"):
            yield lines[start], number - start + 1
            start = None


@pytest.mark.parametrize("name", NATIVE_FILES)
def test_native_files_and_functions_stay_short(name):
    text = (NATIVE / name).read_text()
    assert len(text.splitlines()) < LINES
    for opening, length in native_functions(text):
        assert length < FUNCTION_LINES, f"{opening} has {length} lines"


def test_native_functions_are_found():
    names = " ".join(opening for opening, _ in native_functions((NATIVE / "bindings.cpp").read_text()))
    assert all(f"static void {name}(" in names for name in ("assign", "decode", "errors", "add_rows", "count_pairs"))


def test_nothing_is_compiled_for_this_machine_alone():
    for path in (NATIVE.parent / "CMakeLists.txt", NATIVE.parent / "pyproject.toml"):
        assert "march=native" not in path.read_text()


def stub_parameters():
    tree = ast.parse((SOURCE / "_core.pyi").read_text())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args]
            defaults = [ast.literal_eval(value) for value in node.args.defaults]
            found[node.name] = (names, dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)))
    return found


def native_parameters(function):
    """Names and defaults from nanobind's ``def name(a: type[…], b: type = \\0) -> …``."""
    ((signature, _, defaults),) = function.__nb_signature__
    inside = signature[signature.index("(") + 1 : signature.rindex(") ->")]
    names, where = [], {}
    for part in top_level(inside):
        names.append(part.split(":")[0].strip())
        if match := re.search(r"= \\(\d+)$", part):
            where[names[-1]] = defaults[int(match[1])]
    return names, where


def top_level(text):
    """``text`` cut at the commas outside all brackets."""
    depth, part = 0, ""
    for sign in text:
        depth += (sign in "[(") - (sign in "])")
        if sign == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += sign
    if part.strip():
        yield part.strip()


def test_the_stub_names_what_the_native_module_has():
    compiled = {name for name in dir(_core) if not name.startswith("_")}
    assert set(stub_parameters()) == compiled


@pytest.mark.parametrize("name", sorted(stub_parameters()))
def test_the_stub_has_the_parameters_of_the_native_function(name):
    assert stub_parameters()[name] == native_parameters(getattr(_core, name))
