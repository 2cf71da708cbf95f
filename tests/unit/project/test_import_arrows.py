"""Arrows point one way: tools to connectors to core, tools to the engine to core; within the engine down to the log."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.documents import ROOT, SOURCES

CORE, ENGINE, CONNECTORS, TOOLS = (root / "outfall" for root in SOURCES)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imported(file: Path) -> tuple[str, ...]:
    """Every module that a file imports when it runs; not what it imports for the type checker only."""
    return tuple(_imported(parsed(file)))


def _imported(tree: ast.Module) -> Iterator[str]:
    unseen: list[ast.AST] = [tree]
    while unseen:
        node = unseen.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            unseen.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)
        # No expression holds an import, and most nodes are expressions.
        unseen.extend(child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr))


BENCHMARK = TOOLS / "testing" / "benchmark"
"""Measures sinks on Spark, and so knows it where the rest of the test support runs without."""


def sources(place: Path) -> list[Path]:
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def offences(place: Path, forbidden: tuple[str, ...]) -> list[str]:
    """Imports in a package or module of what it may not know."""
    return [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sources(place)
        if not file.is_relative_to(BENCHMARK) or place.is_relative_to(BENCHMARK)
        for module in imported(file)
        if any(module == name or module.startswith(f"{name}.") for name in forbidden)
    ]


def packages(root: Path) -> tuple[str, ...]:
    return tuple(
        f"outfall.{path.stem}" for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith("_")
    )


SPARK = ("pyspark", "py4j", "outfall.spark", "pyspark_outfall")
SHARED = (
    "outfall.async_sink",
    "outfall.aws",
    "outfall.formats",
    "outfall.part_ledger",
    "outfall.possession",
    "outfall.schema_registry",
    "outfall.sql",
    "outfall.storage",
    "outfall.tables",
    "outfall.versioned",
    "outfall.wrappers",
)
"""Bases that connectors share."""
DESTINATIONS = tuple(name for name in packages(CONNECTORS) if name not in SHARED)


def test_the_core_knows_nothing_above_it() -> None:
    assert offences(CORE, (*SPARK, *packages(ENGINE), *packages(CONNECTORS), *packages(TOOLS))) == []


def test_the_engine_knows_no_connector() -> None:
    assert offences(ENGINE, (*packages(CONNECTORS), *packages(TOOLS))) == []


@pytest.mark.parametrize(
    ("place", "forbidden"),
    [
        (ENGINE / "protocol", SPARK),
        (ENGINE / "recovery", (*SPARK, "outfall.protocol", "outfall.sinks")),
        (CORE / "capabilities", ("outfall.sinks",)),
        (CORE / "sinks", ("outfall.capabilities",)),
        (CORE / "serde", ("outfall.capabilities", "outfall.sinks")),
        (CORE / "errors", ("outfall",)),
        (CORE / "trace_points", ("outfall",)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_each_package_knows_only_what_lies_below(place: Path, forbidden: tuple[str, ...]) -> None:
    assert sources(place)
    assert offences(place, forbidden) == []


@pytest.mark.parametrize("name", [*SHARED, *DESTINATIONS])
def test_connectors_know_neither_spark_nor_tools_nor_each_other(name: str) -> None:
    others = tuple(module for module in DESTINATIONS if module != name)
    assert offences(CONNECTORS / name.removeprefix("outfall."), (*SPARK, *packages(TOOLS), *others)) == []


def test_formats_and_the_asynchronous_base_know_no_protocol() -> None:
    above = ("outfall.protocol", "outfall.recovery", "outfall.wrappers")
    assert offences(CONNECTORS / "formats", (*above, "outfall.async_sink")) == []
    assert offences(CONNECTORS / "async_sink", above) == []


def loaded(package: str) -> set[str]:
    """Every module of any distribution that is loaded by an import of a package and of its modules."""
    files, found = modules(), set[str]()
    left = [module for module in files if f"{module}.".startswith(f"{package}.")]
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            if module in files:
                # A package is loaded before its modules.
                left += [*at_once(files[module]), module.rpartition(".")[0]]
    return found


@cache
def at_once(file: Path) -> tuple[str, ...]:
    """What a file imports when it is loaded, without what it can do without."""
    tree = parsed(file)
    kept = [node for node in tree.body if not isinstance(node, ast.Try | ast.FunctionDef | ast.ClassDef)]
    return tuple(_imported(ast.Module(kept, [])))


@pytest.mark.parametrize("name", ["dynamodb", "http", "kinesis", "opensearch", "redis", "wrappers"])
def test_no_sink_of_requests_loads_the_log(name: str) -> None:
    # Executors load the sink in each new worker.
    found = loaded(f"outfall.{name}")
    assert {module for module in found if module.startswith(("outfall.recovery", "outfall.spark"))} == set()


BROUGHT = {
    "botocore": "boto3", "certifi": "requests", "multidict": "aiohttp", "pydantic_core": "pydantic", "yarl": "aiohttp",
}  # fmt: skip
"""Modules of distributions that another one requires."""


@cache
def installed_modules() -> dict[str, set[str]]:
    """The distributions that bring each module."""
    return {module: {each.lower() for each in names} for module, names in packages_distributions().items()}


@pytest.mark.parametrize("name", [destination.removeprefix("outfall.") for destination in DESTINATIONS])
def test_an_extra_brings_what_its_package_imports(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"][name]]
    installed = {Requirement(line).name.lower() for line in lines}
    known = installed_modules()
    ours = {*sys.stdlib_module_names, "outfall", ""}
    needed = {module.partition(".")[0] for module in loaded(f"outfall.{name}")} - ours
    assert {module for module in needed if not known[BROUGHT.get(module, module)] & installed} == set()


def test_connectors_know_of_the_engine_what_a_store_and_a_wrapper_need() -> None:
    known = ("outfall.recovery", "outfall.protocol.clock", "outfall.protocol.partition")
    found = [module for file in sources(CONNECTORS) for module in imported(file) if module.startswith("outfall.")]
    assert [module for module in found if module.startswith("outfall.protocol.") and not module.startswith(known)] == []


def test_the_base_of_databases_knows_no_driver() -> None:
    assert offences(CONNECTORS / "sql", ("psycopg", "pgpq", "pymysql", "sqlite3")) == []


def test_tools_know_spark_in_the_benchmark_kit_only() -> None:
    assert offences(TOOLS, SPARK) == []
    below = (CORE, ENGINE, CONNECTORS)
    assert [line for place in below for line in offences(place, ("outfall.testing.benchmark",))] == []


def test_what_the_logs_say_is_read_without_the_command_line() -> None:
    assert offences(TOOLS / "metrics", ("outfall.cli", "click", "rich")) == []


def test_pandas_is_never_needed() -> None:
    assert [line for root in (CORE, ENGINE, CONNECTORS, TOOLS) for line in offences(root, ("pandas",))] == []


@cache
def modules() -> dict[str, Path]:
    """Every module of the distribution by its name."""
    found = {}
    for root in (CORE, ENGINE, CONNECTORS, TOOLS):
        for file in root.rglob("*.py"):
            found[".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")] = file
    return found


def test_no_imports_are_circular() -> None:
    # Not in a function either: there they hide that two modules are one.
    files = modules()
    left = {name: set(imported(file)) & files.keys() - {name} for name, file in files.items()}
    size = None
    while size != (size := len(left)):
        # What imports nothing that is left, and what nothing that is left imports, is in no circle.
        needed = set().union(*left.values())
        left = {name: needs & left.keys() for name, needs in left.items() if needs & left.keys() and name in needed}
    assert left == {}


def test_no_two_classes_have_one_name() -> None:
    names = [
        node.name
        for file in modules().values()
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert {name for name in names if names.count(name) > 1} == set()


def test_no_class_is_made_or_exchanged_while_the_program_runs() -> None:
    def offends(node: ast.AST) -> bool:
        if isinstance(node, ast.ClassDef):
            return any(word.arg == "metaclass" for word in node.keywords) or "ABCMeta" in map(ast.unparse, node.bases)
        if isinstance(node, ast.FunctionDef):
            return node.name == "__new__" or any(isinstance(inner, ast.ClassDef) for inner in ast.walk(node))
        if isinstance(node, ast.Assign):
            return any(isinstance(target, ast.Attribute) and target.attr == "__class__" for target in node.targets)
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            makes = called in {"type", "new_class"} and len(node.args) > 1
            return makes or any(isinstance(given, ast.Constant) and given.value == "__class__" for given in node.args)
        return False

    found = [
        f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        for file in modules().values()
        for node in ast.walk(parsed(file))
        if offends(node)
    ]
    assert found == []


def test_no_text_of_core_and_engine_names_a_connector() -> None:
    """A docstring may have an example; what a user reads in an error fits each sink."""
    sinks = {
        node.name for file in CONNECTORS.glob("*/*.py") for node in parsed(file).body if isinstance(node, ast.ClassDef)
    }
    sinks = {name for name in sinks if name.endswith("Sink")}
    assert {"PostgresSink", "FileSink"} <= sinks
    found = []
    for file in (*sources(CORE), *sources(ENGINE)):
        prose = {id(node.value) for node in ast.walk(parsed(file)) if isinstance(node, ast.Expr)}
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                found += [
                    f"{file.relative_to(ROOT)}:{node.lineno} names {name}" for name in sinks if name in node.value
                ]
    assert not found
