"""Arrows point one way: connectors to core; spark to epoch to capabilities and recovery to sinks and serde."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "outfall"
CONNECTORS = ROOT / "connectors" / "outfall"


def imported(file: Path) -> Iterator[str]:
    """Every module that a file imports when it runs; not what it imports for the type checker only."""
    tree = ast.parse(file.read_text())
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
        unseen.extend(ast.iter_child_nodes(node))


BENCHMARK = CORE / "testing" / "benchmark"
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


DOORS = ("pyspark", "py4j", "outfall.spark", "pyspark_outfall")
CONNECTOR_NAMES = sorted(path.name for path in CONNECTORS.iterdir() if path.is_dir() and not path.name.startswith("_"))
CONNECTOR_MODULES = tuple(f"outfall.{name}" for name in CONNECTOR_NAMES)


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("epoch", (*DOORS, "outfall.testing")),
        ("recovery", (*DOORS, "outfall.epoch", "outfall.testing", "outfall.sinks")),
        ("testing", DOORS),
        ("door_options", (*DOORS, "outfall.testing")),
        ("cli", (*DOORS, "outfall.testing")),
        ("composite", (*DOORS, "outfall.testing")),
        ("buckets", (*DOORS, "outfall.epoch", "outfall.recovery", "outfall.capabilities", "outfall.sinks")),
        ("encode", (*DOORS, "outfall.epoch", "outfall.recovery", "outfall.buckets")),
        ("async_sink", (*DOORS, "outfall.epoch", "outfall.recovery", "outfall.testing", "outfall.buckets")),
        ("values", (*DOORS, "outfall.epoch", "outfall.recovery", "outfall.capabilities", "outfall.sinks")),
        ("capabilities", (*DOORS, "outfall.epoch", "outfall.recovery", "outfall.sinks")),
        ("sinks", (*DOORS, "outfall.epoch", "outfall.recovery", "outfall.capabilities")),
        ("serde", (*DOORS, "outfall.epoch", "outfall.recovery", "outfall.capabilities", "outfall.sinks")),
        ("errors", (*DOORS, "outfall")),
        ("steps", (*DOORS, "outfall")),
    ],
)
def test_core_knows_only_what_lies_below(package: str, forbidden: tuple[str, ...]) -> None:
    assert sources(CORE / package)
    assert offences(CORE / package, forbidden) == []


def test_core_knows_no_connector() -> None:
    # The options door looks connectors up by name, in importlib; it imports none.
    assert offences(CORE, CONNECTOR_MODULES) + offences(BENCHMARK, CONNECTOR_MODULES) == []


def test_the_benchmark_kit_is_imported_by_nothing_else_in_core() -> None:
    assert offences(CORE, ("outfall.testing.benchmark",)) == []


def test_only_tests_know_the_test_support() -> None:
    places = [path for path in CORE.iterdir() if path.is_dir() and path.name not in {"testing", "__pycache__"}]
    assert [line for place in [*places, CONNECTORS] for line in offences(place, ("outfall.testing",))] == []


@pytest.mark.parametrize("name", CONNECTOR_NAMES)
def test_connectors_know_neither_spark_nor_each_other(name: str) -> None:
    others = tuple(module for module in CONNECTOR_MODULES if module != f"outfall.{name}" and name != "wrappers")
    assert offences(CONNECTORS / name, (*DOORS, *others)) == []


def test_pandas_is_never_needed() -> None:
    assert [line for place in (CORE, BENCHMARK, CONNECTORS) for line in offences(place, ("pandas",))] == []
