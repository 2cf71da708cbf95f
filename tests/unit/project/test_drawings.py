"""The docstring of a package that draws its modules draws what is in its folder, and so does docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TypeGuard

import pytest

from tests.documents import DOCS, ROOT, SOURCES

PACKAGES = [root / "outfall" for root in SOURCES]


def drawing(package: Path) -> str:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    return "\n".join(re.findall(r"^```\n(.*?)^```", docstring, re.MULTILINE | re.DOTALL))


def arrows(text: str) -> set[str]:
    """The lines that say whose objects a module creates, such as `sink → writer, commit`."""
    return set(re.findall(r"^\w+ → .*$", text, re.MULTILINE))


DRAWN = {
    str(file.parent.relative_to(ROOT)): text
    for source in PACKAGES
    for file in sorted(source.rglob("__init__.py"))
    if (text := drawing(file.parent))
}


def contents(folder: Path) -> set[str]:
    """The modules and the packages in a folder."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


def heads(text: str) -> list[str]:
    """The names in the first column."""
    columns = [
        re.split(r" {2,}", line)[0] for line in text.splitlines() if line[:1].strip() and line not in arrows(text)
    ]
    return [name.rstrip("/") for column in columns for name in re.split(r"[ ,]+", column.partition(":")[0]) if name]


@pytest.mark.parametrize("package", DRAWN)
def test_a_drawing_names_every_module_of_its_folder(package: str) -> None:
    text = DRAWN[package]
    assert {name for name in contents(ROOT / package) if not re.search(rf"\b{name}\b", text)} == set()


@pytest.mark.parametrize("package", DRAWN)
def test_what_a_drawing_names_first_is_in_its_folder(package: str) -> None:
    assert [name for name in heads(DRAWN[package]) if name not in contents(ROOT / package)] == []


@pytest.mark.parametrize("package", [package for package, text in DRAWN.items() if arrows(text)])
def test_a_drawing_says_whose_objects_each_module_creates(package: str) -> None:
    trees = {
        file.stem: ast.parse(file.read_text()) for file in (ROOT / package).glob("*.py") if file.stem != "__init__"
    }
    home = {node.name: module for module, tree in trees.items() for node in tree.body if is_acting(node)}
    made = {module: {home[name] for name in called(tree) & home.keys()} - {module} for module, tree in trees.items()}
    found = {f"{module} → {', '.join(sorted(others))}" for module, others in made.items() if others}
    assert arrows(DRAWN[package]) == found


def is_acting(node: ast.AST) -> TypeGuard[ast.ClassDef]:
    """Whether a statement defines a class of objects that do something, other than values and errors."""
    if not isinstance(node, ast.ClassDef) or any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return False
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    return not bases & {"NamedTuple", "TypedDict", "Enum", "BaseModel"} and not node.name.endswith("Error")


def called(tree: ast.Module) -> set[str]:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def test_the_architecture_names_every_package_and_the_modules_of_the_core() -> None:
    text = (DOCS / "architecture.md").read_text()
    modules = contents(PACKAGES[0]) | contents(PACKAGES[1] / "protocol")
    assert {name for name in modules if not re.search(rf"\b{name}\b", text)} == set()
    packages = {path.parent.name for source in PACKAGES for path in source.glob("*/__init__.py")}
    assert {name for name in packages if f"{name}/" not in text} == set()
    drawn = re.findall(r"^  (\w+)/ ", text, re.MULTILINE)
    assert drawn
    assert [name for name in drawn if not any((source / name).is_dir() for source in PACKAGES)] == []
