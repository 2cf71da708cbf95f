"""The API reference has every public name, and their docstrings say what they promise to."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outfall import errors
from tests.documents import DOCS

pytest.importorskip("pyspark")

PAGES = sorted(path for path in (DOCS / "reference").glob("*.md") if path.name != "index.md")
_DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
_PARAMETER = re.compile(r"^\*{0,2}(\w+):", re.MULTILINE)
_MODEL = re.compile(r"\bSee `(\w+Options)`")
_SECTION = r"^%s:\n((?:^(?: .*)?$\n?)+)"
FACTORIES = ("_from_options", "_from_url")
"""What entry points name: a user gives their options to `format("outfall")`."""


@dataclass(frozen=True)
class Named:
    """A public class, function, method or property."""

    name: str
    thing: Any
    owner: type | None = None

    @property
    def function(self) -> Callable[..., Any] | None:
        """What is called, of a dataclass `__post_init__`; `None` of a class without a constructor of its own."""
        found = self.thing
        if inspect.isclass(found):
            own = vars(found)
            found = own.get("__post_init__" if "__dataclass_fields__" in own else "__init__")
        found = inspect.unwrap(found) if found else None
        return found if inspect.isfunction(found) else None

    @property
    def text(self) -> str:
        """Its docstring, with that of the constructor or of the methods that it implements."""
        if inspect.isclass(self.thing):
            texts = [self.thing.__doc__, self.function and self.function.__doc__]
        else:
            owners = self.owner.__mro__ if self.owner else ()
            texts = [vars(owner)[self.thing.__name__].__doc__ for owner in owners if self.thing.__name__ in vars(owner)]
        return "\n\n".join(inspect.cleandoc(text) for text in texts or [self.thing.__doc__] if text)


def resolved(path: str) -> Any:
    """Return what a page names: a module, or something in one."""
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name, None) if module != "outfall" else None
    return importlib.import_module(path) if found is None or inspect.ismodule(found) else found


def public_names(module: ModuleType) -> list[str]:
    own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


@cache
def everything() -> dict[str, Named]:
    """What the pages show, by its path."""
    found: dict[str, Named] = {}
    for page in PAGES:
        for path in _DIRECTIVE.findall(page.read_text()):
            thing = resolved(path)
            things = {path: thing}
            if inspect.ismodule(thing):
                things = {f"{path}.{name}": getattr(thing, name) for name in public_names(thing)}
            for name, each in things.items():
                if inspect.isclass(each) or inspect.isfunction(each):
                    found[name] = Named(name, each)
                    found |= {member.name: member for member in members(name, each)}
    return found


def members(path: str, owner: Any) -> Iterator[Named]:
    if not inspect.isclass(owner):
        return
    for name, thing in vars(owner).items():
        inner = getattr(thing, "__func__", thing)
        # Not a function that is the value of an attribute.
        is_method = inspect.isfunction(inner) and inner.__qualname__ == f"{owner.__qualname__}.{name}"
        if not name.startswith("_") and (is_method or isinstance(inner, property)):
            yield Named(f"{path}.{name}", inner.fget if isinstance(inner, property) else inner, owner)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_every_public_name_of_its_package(page: Path) -> None:
    package = f"outfall.{page.stem}"
    directives = _DIRECTIVE.findall(page.read_text())
    if package not in directives:
        names = {path.rpartition(".")[2] for path in directives}
        exported = getattr(importlib.import_module(package), "__all__", [])
        assert [name for name in exported if name not in names and not name.endswith(FACTORIES)] == []


def test_every_public_name_has_a_docstring() -> None:
    assert len(everything()) > 300
    assert [name for name, named in everything().items() if not named.text] == []


def test_args_list_every_parameter() -> None:
    assert {name: missing for name, named in everything().items() if (missing := unlisted(named))} == {}


def unlisted(named: Named) -> list[str]:
    """The parameters that an Args section leaves out."""
    section = part(named.text, "Args")
    if section is None:
        return []
    listed = {"self", "cls", *_PARAMETER.findall(textwrap.dedent(section))}
    for model in _MODEL.findall(section):
        # The table of a model in the documentation describes its fields.
        fields = vars(sys.modules[named.thing.__module__])[model].model_fields
        listed |= {*fields, "options", "settings"}
    return [name for name in inspect.signature(named.thing).parameters if name not in listed]


def test_raises_list_the_errors_that_a_body_raises() -> None:
    assert {name: missing for name, named in everything().items() if (missing := unnamed_errors(named))} == {}


def unnamed_errors(named: Named) -> list[str]:
    """The errors of `outfall.errors` that are raised in the body itself and that no Raises section covers."""
    if named.function is None:
        return []
    section = part(named.text, "Raises") or ""
    known = inspect.getmembers(errors, inspect.isclass)
    covering = tuple(error for name, error in known if re.search(rf"\b{name}\b", section))
    return [name for name in raised(named.function) if not issubclass(getattr(errors, name), covering)]


def raised(function: Callable[..., Any]) -> list[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    names = [ast.unparse(call.func).removesuffix(".because_of") for call in calls]
    return [name for name in names if inspect.isclass(getattr(errors, name, None))]


def part(text: str, name: str) -> str | None:
    """Return a section of a docstring in Google's style."""
    return "".join(re.findall(_SECTION % name, text + "\n", re.MULTILINE)) or None
