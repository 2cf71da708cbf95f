"""CONTRIBUTING and RELEASING name folders, sessions, modules and variables that are there."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from tests.documents import ROOT

TEXTS = {name: (ROOT / name).read_text() for name in ("CONTRIBUTING.md", "RELEASING.md")}
CHOSEN = r"<|X\.Y\.Z|^dist/"
"""What a path holds that names no file of the repository: a word to fill in, or a folder that a build makes."""


def commands(text: str) -> list[str]:
    blocks: list[str] = re.findall(r"^ *```bash\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    return [line.split("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.fixture(scope="module")
def sessions() -> set[str]:
    """The sessions of noxfile.py, as `nox -s` takes them. It is not imported: nox is not everywhere where tests run."""
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    keys = {
        ast.unparse(node.targets[0]): [ast.literal_eval(key) for key in node.value.keys if key]
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    }
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {
        *(node.name for node in functions if any("nox.session" in ast.unparse(mark) for mark in node.decorator_list)),
        *(f"spark-{minor}" for minor in keys["SPARKS"]),
    }


@pytest.mark.parametrize("page", TEXTS)
def test_every_session_is_in_noxfile(page: str, sessions: set[str]) -> None:
    called = [
        name.strip('"')
        for command in (*commands(TEXTS[page]), *re.findall(r"`([^`\n]+)`", TEXTS[page]))
        for names in re.findall(r"\bnox (?:--no-venv )?-s ((?:\"[^\"]+\"|[\w.-]+)(?: (?!--)[\w.-]+)*)", command)
        for name in re.findall(r'"[^"]+"|\S+', names)
    ]
    assert called
    assert [name for name in called if name not in sessions] == []


@pytest.mark.parametrize("page", TEXTS)
def test_every_path_and_link_is_there(page: str) -> None:
    text = TEXTS[page]
    quoted = re.findall(r"`([^`\s]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))
    paths = {path for path in quoted if re.search(r"/|\.(?:md|py|toml|yaml)$", path)}
    paths |= {word for command in commands(text) for word in command.split() if re.match(r"tests/|README", word)}
    paths |= {link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link}
    named = {path for path in paths if not re.search(CHOSEN, path)}
    assert len(named) > 5
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("page", TEXTS)
def test_every_module_of_the_repository_is_there(page: str) -> None:
    modules = re.findall(r"python -m ((?:tests|benchmarks|outfall)[\w.]*)", TEXTS[page])
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def test_the_tests_read_the_variables() -> None:
    read = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    named = set(re.findall(r"OUTFALL_TEST_\w+", TEXTS["CONTRIBUTING.md"]))
    assert {name for name in named if f'"{name}"' not in read} == set()
    assert named


def test_the_set_up_is_that_of_the_readme() -> None:
    assert " && ".join(commands(TEXTS["CONTRIBUTING.md"])[:2]) in (ROOT / "README.md").read_text()
