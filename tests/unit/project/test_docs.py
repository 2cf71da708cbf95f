"""The pages are complete, their links lead somewhere, and their blocks that need no Spark run."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

from outfall.recovery import entries
from outfall.recovery.log import LogEntry
from tests.documents import PAGES, RECIPES, ROOT, blocks, modules, page_name, unchanged_environment

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_REFERENCE = re.compile(r"^\[([^\]]+)\]: ", re.MULTILINE)
_USED = re.compile(r"\[([^\]\[]+)\](?!\(|: )(?:\[([^\]]+)\])?")


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))


SLOW = {"testing-a-sink.md"}
"""It runs the suite for sinks."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.thorough] if page_name(page) in SLOW else [])
        for page in PAGES
        if page.parent != RECIPES
    ],
    ids=page_name,
)
def test_blocks_without_spark_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with unchanged_environment():
        for block in blocks(page):
            if block.reason is None and not block.needs_spark:
                block.run(names, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_of_python_is_found(page: Path) -> None:
    assert len(blocks(page)) == page.read_text().count("```python\n")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    targets = [target.split("#")[0] for target in _LINK.findall(prose(page)) if "://" not in target]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_references_are_defined(page: Path) -> None:
    text = prose(page)
    defined = {name.lower() for name in _REFERENCE.findall(text)}
    if defined:
        used = {(second or first).replace("\n", " ").lower() for first, second in _USED.findall(text)}
        assert used >= defined, "defined and not used"
        assert used <= defined, "used and not defined"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_no_page_names_a_machine(page: Path) -> None:
    assert not re.search(r"/(?:work|home|root|Users|tmp)/", page.read_text())


FORMAT = (ROOT / "docs" / "recovery-format.md").read_text()


def section(heading: str) -> str:
    found = re.search(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", FORMAT, re.MULTILINE | re.DOTALL)
    assert found, f"docs/recovery-format.md has no section {heading!r}"
    return found[1]


MODELS = [model for _, model in inspect.getmembers(entries, inspect.isclass) if issubclass(model, entries.StoredModel)]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_the_recovery_format_names_every_field(model: type[entries.StoredModel]) -> None:
    if model is entries.StoredModel:
        return
    common = set(entries._Entry.model_fields) | {"kind"}
    fields = {field.alias or name for name, field in model.model_fields.items()}
    if model is entries._Entry:
        described, fields = section("Fields of every entry"), common
    else:
        described = section(model.__name__)
        fields -= common if issubclass(model, entries._Entry) else set()
    assert set(re.findall(r"^\| `(\w+)` \|", described, re.MULTILINE)) == fields


def test_the_recovery_format_gives_entries_that_are_read() -> None:
    examples = re.findall(r"^```json\n(.*?)^```", FORMAT, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        document = json.loads(example)
        entry = entries.decode_entry(LogEntry(1, example.encode()), document["step"])
        assert json.loads(entries.encode_entry(entry)).keys() == document.keys()


def test_the_recovery_format_is_that_of_the_code() -> None:
    assert f"Format {entries.FORMAT}," in FORMAT
    assert f"| `format` | {entries.FORMAT} |" in FORMAT


LEVELS = {"debug", "info", "warning", "error", "critical"}


def loggers() -> dict[str, set[str]]:
    """The loggers that the sources get, with the levels that they are called at; not the test kit's, which listens."""
    found: dict[str, set[str]] = {}
    for module, file in modules():
        text = file.read_text()
        # To parse all modules takes seconds.
        if not module.startswith("outfall.testing.") and ("getLogger" in text or "RetryLog" in text):
            found |= _loggers_in(module, ast.parse(text))
    return found


def _loggers_in(module: str, tree: ast.Module) -> dict[str, set[str]]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {
        ast.unparse(call): module if ast.unparse(call.args[0]) == "__name__" else ast.literal_eval(call.args[0])
        for call in calls
        if ast.unparse(call.func).endswith("getLogger")
    }
    variables = {
        ast.unparse(target): names[ast.unparse(node.value)]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in names
        for target in node.targets
    }
    levels: dict[str, set[str]] = {name: set() for name in names.values()}
    for call in calls:
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in variables:
            level = "error" if call.func.attr == "exception" else call.func.attr
            levels[variables[ast.unparse(call.func.value)]] |= {level} & LEVELS
        if ast.unparse(call.func) == "RetryLog":
            levels[(names | variables)[ast.unparse(call.args[0])]].add("warning")
    return levels


def test_operations_lists_every_logger_with_its_levels() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    _, _, table = page.partition("| logger | levels | messages |")
    rows = re.findall(r"^\| `(outfall[\w.]*)` \| ([A-Z, ]+) \| \w", table, re.MULTILINE)
    found = loggers()
    assert {name: set(levels.lower().split(", ")) for name, levels in rows} == found
    assert len(rows) == len(found)
