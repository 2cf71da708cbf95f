"""docs/troubleshooting.md: its tables are those of the code, and its messages are those that users get."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

from docs.error_tables import PAGE, with_tables
from tests.documents import modules

_MESSAGE = re.compile(r"^<!-- message: (?P<source>.+) -->\n```text\n(?P<text>.+)\n```$", re.MULTILINE)
HOLE = "…"


def test_the_tables_are_those_of_the_code() -> None:
    assert PAGE.read_text() == with_tables(PAGE.read_text()), "run: python docs/error_tables.py"


def test_each_message_has_a_source() -> None:
    assert PAGE.read_text().count("```text\n") == len(_MESSAGE.findall(PAGE.read_text()))


@pytest.mark.parametrize(("source", "text"), _MESSAGE.findall(PAGE.read_text()))
def test_each_message_is_what_users_get(source: str, text: str) -> None:
    if source.endswith("Spark"):
        assert re.search(re.escape(text).replace(HOLE, "<[^>]+>"), spark_messages())
    elif source not in FROM_ELSEWHERE:
        texts = [found for names, literals in our_texts() if source.split()[-1] in names for found in literals]
        assert any(text in found for found in texts), f"no text of {source} in the sources holds {text!r}"


FROM_ELSEWHERE = {"Python", "Scala"}
"""Texts of Python itself, and those within Spark's compiled code."""


def spark_messages() -> str:
    """The messages of Spark's error conditions, those of Python as well as those of its servers."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        pytest.skip("needs PySpark")
    pyspark = Path(found.origin).parent
    (jar,) = pyspark.glob("jars/spark-common-utils_*.jar")
    with ZipFile(jar) as content:
        # Spark 3.5 has them under the second name, where later ones list something else.
        names = [f"error/error-{name}.json" for name in ("conditions", "classes")]
        server = content.read(next(name for name in names if name in content.namelist())).decode()
    return (server + (pyspark / "errors" / "error-conditions.json").read_text()).replace('\\"', '"')


@cache
def our_texts() -> list[tuple[set[str], list[str]]]:
    """For each module the names that are used in it, its own among them, and its literals with holes for values."""
    found = []
    for module, file in modules():
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        found.append((names | {module}, [_literal(node) for node in nodes]))
    return found


def _literal(node: ast.AST) -> str:
    """Return a literal with a hole for each value, of Python and of `logging`; nothing for another node."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sd]", HOLE, node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(value) or HOLE for value in node.values)
    return ""
