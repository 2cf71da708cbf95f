"""Arrows point one way: tools to connectors to core, and within core from spark to protocol to recovery to the rest."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "outfall"
CONNECTORS = ROOT / "connectors" / "outfall"
TOOLS = ROOT / "tools" / "outfall"


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
SHARED = ("outfall.async_sink", "outfall.formats", "outfall.wrappers")
"""Bases that connectors share."""
DESTINATIONS = tuple(name for name in packages(CONNECTORS) if name not in SHARED)


def test_the_core_knows_nothing_above_it() -> None:
    assert offences(CORE, (*packages(CONNECTORS), *packages(TOOLS))) == []


@pytest.mark.parametrize(
    ("place", "forbidden"),
    [
        ("protocol", SPARK),
        ("recovery", (*SPARK, "outfall.protocol", "outfall.sinks")),
        ("capabilities", (*SPARK, "outfall.protocol", "outfall.recovery", "outfall.sinks")),
        ("sinks", (*SPARK, "outfall.protocol", "outfall.recovery", "outfall.capabilities")),
        ("serde", (*SPARK, "outfall.protocol", "outfall.recovery", "outfall.capabilities", "outfall.sinks")),
        ("errors", (*SPARK, "outfall")),
        ("trace_points", (*SPARK, "outfall")),
    ],
)
def test_within_the_core_each_package_knows_only_what_lies_below(place: str, forbidden: tuple[str, ...]) -> None:
    assert sources(CORE / place)
    assert offences(CORE / place, forbidden) == []


@pytest.mark.parametrize("name", [*SHARED, *DESTINATIONS])
def test_connectors_know_neither_spark_nor_tools_nor_each_other(name: str) -> None:
    others = tuple(module for module in DESTINATIONS if module != name)
    assert offences(CONNECTORS / name.removeprefix("outfall."), (*SPARK, *packages(TOOLS), *others)) == []


def test_formats_and_the_asynchronous_base_know_no_protocol() -> None:
    above = ("outfall.protocol", "outfall.recovery", "outfall.wrappers")
    assert offences(CONNECTORS / "formats", (*above, "outfall.async_sink")) == []
    assert offences(CONNECTORS / "async_sink", above) == []


def test_tools_know_spark_in_the_benchmark_kit_only() -> None:
    assert offences(TOOLS, SPARK) == []
    assert [line for place in (CORE, CONNECTORS) for line in offences(place, ("outfall.testing.benchmark",))] == []


def test_pandas_is_never_needed() -> None:
    assert [line for root in (CORE, CONNECTORS, TOOLS) for line in offences(root, ("pandas",))] == []
