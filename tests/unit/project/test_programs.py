"""Programs that pip cannot install: each has a package. A test that needs one is skipped, or fails if it must run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import programs
from tests.documents import ROOT

pytest_plugins = ["pytester"]

FOLDERS = ("tests", "benchmarks", "examples", "tools/outfall/testing")
STARTERS = {"OwnServer", "Popen", "check_call", "check_output"}
"""What takes a command as its first argument, besides `subprocess.run`, and functions with a parameter `*command`."""

CONFTEST = """
from tests import programs
from tests.conftest import pytest_runtest_call, pytest_unconfigure

programs.PACKAGES["no-such-program"] = "its-package"
"""
TESTS = """
import pytest
from tests.programs import absent, program

@pytest.fixture
def server():
    program("no-such-program")

def test_needs_it():
    program("no-such-program")

@pytest.mark.parametrize("text", ["a b", "[c] :: d"])
def test_needs_its_server(server, text):
    pass

def test_needs_a_right():
    absent("the right to mount")

def test_needs_nothing():
    pytest.skip("for another reason")
"""
MODULE = """
from tests.programs import program

program("no-such-program")

def test_is_in_a_module_that_needs_it():
    pass
"""


@pytest.fixture
def here(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Tests of which some need a program that is absent; nothing of this run's settings."""
    for name in ("REQUIRE_ALL", "WITHOUT_PROGRAMS", "RECORDS"):
        monkeypatch.delenv(f"OUTFALL_TEST_{name}", raising=False)
    monkeypatch.setitem(programs.PACKAGES, "no-such-program", "its-package")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_some=TESTS)
    return pytester


def run(here: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return here.runpytest_inprocess("-p", "no:cacheprovider", *arguments)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_last_lines_name_what_is_absent_and_the_command_that_installs_it(
    here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: str
) -> None:
    monkeypatch.setenv("OUTFALL_TEST_RECORDS", str(tmp_path))
    found = run(here, "-n", workers)
    found.assert_outcomes(skipped=5)
    found.stdout.fnmatch_lines(
        ["3 tests skipped without no-such-program. To run them: sudo apt-get install its-package"]
    )
    assert len((tmp_path / "skipped.tsv").read_text().splitlines()) == 4, "each is recorded once"


def test_what_is_absent_fails_where_nothing_may_be_absent(
    here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTFALL_TEST_REQUIRE_ALL", "1")
    found = run(here, "-n", "0")
    found.assert_outcomes(failed=2, errors=2, skipped=1)
    found.stdout.fnmatch_lines(["*absent here: the program no-such-program, and OUTFALL_TEST_REQUIRE_ALL is set*"])


def test_a_second_run_takes_all_that_the_first_skipped_because_something_was_absent(
    here: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here.makepyfile(test_module=MODULE)
    monkeypatch.setenv("OUTFALL_TEST_RECORDS", str(tmp_path))
    run(here, "-n", "0")
    recorded = [line.partition("\t")[0] for line in (tmp_path / "skipped.tsv").read_text().splitlines()]
    assert sorted(recorded) == [
        "test_module.py",
        "test_some.py::test_needs_a_right",
        "test_some.py::test_needs_it",
        "test_some.py::test_needs_its_server[[c] :: d]",
        "test_some.py::test_needs_its_server[a b]",
    ]
    chosen = tmp_path / "chosen"
    chosen.write_text("\n".join(recorded))
    run(here, "-n", "0", f"@{chosen}").assert_outcomes(skipped=5)


def test_a_variable_makes_each_program_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.PACKAGES, "sh", "its-package")
    monkeypatch.delenv("OUTFALL_TEST_WITHOUT_PROGRAMS", raising=False)
    assert programs.installed("sh")
    monkeypatch.setenv("OUTFALL_TEST_WITHOUT_PROGRAMS", "1")
    assert programs.installed("sh") is None


def test_a_program_without_a_package_is_an_error_even_if_it_is_installed() -> None:
    with pytest.raises(LookupError, match="no package is known for the program sh"):
        programs.program("sh")


def test_the_command_names_the_packages_that_are_absent() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "tests.programs"], cwd=ROOT, env={"PATH": ""}, capture_output=True, check=True,
        text=True,
    )  # fmt: skip
    # Programs outside the PATH are found too, so that some may be here.
    assert {"chromium", "maven", "redis-server", "zstd"} <= set(done.stdout.split()) <= {*programs.PACKAGES.values()}


def used(path: Path) -> Iterator[tuple[str, str]]:
    """Yield how a module comes by a program, and its name; `?` if the code does not say it."""
    text = path.read_text()
    if not re.search(r"subprocess|OwnServer|program\(|installed\(|which\(", text):
        return
    nodes = list(ast.walk(ast.parse(text)))
    values: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).append(node.value)
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    starters = STARTERS | {each.name for each in functions if each.args.vararg and each.args.vararg.arg == "command"}
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute) or not node.args:
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if called in {"program", "installed", "which"}:
            name = node.args[0]
            yield called, str(name.value) if isinstance(name, ast.Constant) else "?"
        elif called in starters or (called in {"call", "run"} and "subprocess" in ast.dump(node.func)):
            yield from (("command", name) for name in first(node.args[0], values))


def first(command: ast.expr, values: dict[str, list[ast.expr]]) -> set[str]:
    """The first word of a command, if it is plain text; each that it may be by way of variables."""
    if isinstance(command, ast.Starred):
        return first(command.value, values)
    if isinstance(command, ast.List | ast.Tuple) and command.elts:
        return first(command.elts[0], values)
    if isinstance(command, ast.Name):
        others = {name: value for name, value in values.items() if name != command.id}
        return set().union(*(first(value, others) for value in values.get(command.id, ())))
    return {command.value} if isinstance(command, ast.Constant) and isinstance(command.value, str) else set()


def test_each_program_that_is_used_has_a_package_or_is_given() -> None:
    own = {Path(__file__), Path(programs.__file__)}
    paths = {path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")} - own
    found = {(path.relative_to(ROOT).as_posix(), *way) for path in paths for way in used(path)}
    skipping = {name for _, way, name in found if way in {"program", "installed"}}
    assert {"mariadb-install-db", "strace", "redis-server"} <= skipping <= set(programs.PACKAGES)
    others = {(path, name) for path, way, name in found if way in {"which", "command"}}
    assert {("tests/integration/support/recipe.py", "bash"), ("examples/changes_to_mysql.py", "mariadbd")} <= others
    # Tests must ask for a program, or they fail without it.
    tests = {(path, name) for path, name in others if path.startswith("tests/")}
    assert {(path, name) for path, name in tests if name not in programs.GIVEN} == set()
    assert {name for _, name in others - tests} <= programs.GIVEN | set(programs.PACKAGES)
    assert set(programs.PACKAGES) - skipping - {name for _, name in others} == set(), "nobody uses these"


def test_no_server_of_a_test_has_a_port_that_the_kernel_gives_to_others() -> None:
    # A client that outlives its server comes back to the port, and met a socket of Spark there.
    anywhere = re.compile(r'"127\.0\.0\.1", 0\b|\(HERE, 0\)|TcpProxy\((?!(?s:.{,120})listen=)')
    files = [path for part in ("integration", "peers") for path in (ROOT / "tests" / part).rglob("*.py")]
    assert [str(path.relative_to(ROOT)) for path in files if anywhere.search(path.read_text())] == []
