"""The docstring of a package that draws its modules draws what is in its folder, and so does docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.documents import DOCS, ROOT

SOURCES = [ROOT / name / "outfall" for name in ("core", "engine", "connectors", "tools")]


def drawing(package: Path) -> str:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    return "\n".join(re.findall(r"^```\n(.*?)^```", docstring, re.MULTILINE | re.DOTALL))


DRAWN = {
    str(file.parent.relative_to(ROOT)): text
    for source in SOURCES
    for file in sorted(source.rglob("__init__.py"))
    if (text := drawing(file.parent))
}


def contents(folder: Path) -> set[str]:
    """The modules and the packages in a folder."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


def heads(text: str) -> list[str]:
    """The names in the first column."""
    columns = [re.split(r" {2,}", line)[0] for line in text.splitlines() if line[:1].strip()]
    return [name.rstrip("/") for column in columns for name in re.split(r"[ ,]+", column.partition(":")[0]) if name]


@pytest.mark.parametrize("package", DRAWN)
def test_a_drawing_names_every_module_of_its_folder(package: str) -> None:
    text = DRAWN[package]
    assert {name for name in contents(ROOT / package) if not re.search(rf"\b{name}\b", text)} == set()


@pytest.mark.parametrize("package", DRAWN)
def test_what_a_drawing_names_first_is_in_its_folder(package: str) -> None:
    assert [name for name in heads(DRAWN[package]) if name not in contents(ROOT / package)] == []


def test_the_architecture_names_every_package_and_the_modules_of_the_core() -> None:
    text = (DOCS / "architecture.md").read_text()
    modules = contents(SOURCES[0]) | contents(SOURCES[0] / "protocol")
    assert {name for name in modules if not re.search(rf"\b{name}\b", text)} == set()
    packages = {path.parent.name for source in SOURCES for path in source.glob("*/__init__.py")}
    assert {name for name in packages if f"{name}/" not in text} == set()
    drawn = re.findall(r"^  (\w+)/ ", text, re.MULTILINE)
    assert drawn
    assert [name for name in drawn if not any((source / name).is_dir() for source in SOURCES)] == []
