"""What the distribution promises to those who install it, read from the files that say so."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from outfall import plugins
from outfall.version import outfall_version
from tests.documents import ROOT, SOURCES


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])


def extra(project: dict[str, Any], name: str) -> set[str]:
    """The names of what an extra installs, through the extras that it is made of."""
    found: set[str] = set()
    for text in project["optional-dependencies"][name]:
        requirement = Requirement(text)
        if requirement.name == "outfall":
            for part in requirement.extras:
                found |= extra(project, part)
        else:
            found.add(requirement.name)
    return found


def commands(text: str) -> list[str]:
    """The lines of a shell script that do something."""
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def script(name: str) -> str:
    """The text of a script of .ci, which can be run."""
    path = ROOT / ".ci" / name
    assert path.stat().st_mode & 0o111, "not executable"
    subprocess.run(["bash", "-n", str(path)], check=True)
    return path.read_text()


def readme_section(heading: str) -> str:
    readme = (ROOT / "README.md").read_text()
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", readme, re.MULTILINE | re.DOTALL)
    assert section, f"the README has no heading {heading!r}"
    return section[1]


def readme_command(heading: str) -> str:
    block = re.search(r"^```bash\n(.*?)^```", readme_section(heading), re.MULTILINE | re.DOTALL)
    assert block, f"the README has no bash block under {heading!r}"
    (command,) = commands(block[1])
    return command


def test_ci_runs_the_test_command_of_the_readme_without_programs_and_then_all_else_with_them() -> None:
    assert commands(script("run")) == [
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        ".ci/space",
        "unset PYTHONDONTWRITEBYTECODE",
        "export OUTFALL_TEST_WITHOUT_PROGRAMS=1",
        readme_command("Run the tests"),
        "unset OUTFALL_TEST_WITHOUT_PROGRAMS",
        ".ci/programs",
        "export OUTFALL_TEST_REQUIRE_ALL=1",
        ".venv/bin/nox --no-venv -s skipped",
        ".venv/bin/python -m tests.budget check",
        ".venv/bin/nox --no-venv -s types docs thorough",
        ".venv/bin/nox -s peers -- --slice",
    ]


def test_each_program_that_tests_need_is_installed_by_one_script() -> None:
    lines = commands(script("programs"))
    assert 'read -ra packages <<<"$(python3 -m tests.programs)"' in lines
    assert any(line.strip().endswith('install "${packages[@]}"') for line in lines)


def test_the_first_command_runs_an_example_that_is_there() -> None:
    command = readme_command("Try it")
    assert "'.[spark,examples]'" in command
    assert (ROOT / command.split()[-1]).is_file()


def own_extras(project: dict[str, Any]) -> set[str]:
    """The extras of the sinks: each but the fan-out has one, also if it is empty."""
    return set(project["entry-points"][plugins.SINKS]) - {"fanout"}


def test_every_extra_is_declared(project: dict[str, Any]) -> None:
    assert set(project["optional-dependencies"]) == own_extras(project) | {
        "spark", "aws", "hdfs", "cli", "all", "metrics", "testing", "examples", "benchmark", "docs", "dev",
    }  # fmt: skip


def test_all_is_every_connector_and_never_pyspark(project: dict[str, Any]) -> None:
    parts = {*own_extras(project), "hdfs", "metrics"}
    assert extra(project, "all") == set().union(*(extra(project, name) for name in parts))
    assert extra(project, "aws") == extra(project, "s3") | extra(project, "kinesis") | extra(project, "dynamodb")
    assert "pyspark" not in extra(project, "all")
    assert all(extra(project, name) <= extra(project, "dev") for name in parts)


def test_pandas_and_pyspark_are_not_forced_on_anybody(project: dict[str, Any]) -> None:
    core = {Requirement(text).name for text in project["dependencies"]}
    assert core == {"pyarrow", "fsspec", "tenacity", "pydantic"}
    assert extra(project, "spark") == {"pyspark"}
    for name in project["optional-dependencies"]:
        assert "pandas" not in extra(project, name)


@pytest.mark.parametrize("root", SOURCES, ids=lambda root: root.name)
def test_outfall_is_a_namespace_that_others_can_extend(root: Path) -> None:
    assert not (root / "__init__.py").exists()
    assert not (root / "outfall" / "__init__.py").exists()


def test_no_module_is_in_two_source_roots() -> None:
    found = [path.stem for root in SOURCES for path in root.glob("outfall/*") if path.suffix in {"", ".py"}]
    assert {name for name in found if found.count(name) > 1} - {"__pycache__"} == set()


def test_every_package_tells_type_checkers_that_it_is_typed() -> None:
    # The marker beside core's modules covers all of an installed wheel. Only a checkout has the others elsewhere, and
    # there a second marker at the level of the namespace would be a second file of the same name in the wheel.
    assert (ROOT / "core" / "outfall" / "py.typed").is_file()
    above = [ROOT / "connectors", ROOT / "tools"]
    assert not any((root / "outfall" / "py.typed").exists() for root in above)
    packages = {path.parent for root in above for path in root.glob("*/**/__init__.py")}
    tops = {path for path in packages if path.parent not in packages}
    assert [path for path in sorted(tops) if not (path / "py.typed").is_file()] == []


def test_every_directory_of_modules_is_a_package() -> None:
    # One without __init__.py would be a namespace by accident: somebody else's distribution could add modules to it.
    for root in SOURCES:
        directories = {path.parent for path in root.rglob("*.py")} - {root / "outfall"}
        assert [path for path in sorted(directories) if not (path / "__init__.py").is_file()] == []


def test_the_changelog_knows_the_version() -> None:
    assert outfall_version() in (ROOT / "CHANGELOG.md").read_text()


def test_the_version_is_that_of_the_code() -> None:
    # Built and installed it is checked by tests/wheel/check.py.
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in settings["project"]["dynamic"]
    assert re.findall(
        r'^__version__ = "(.+)"$', (ROOT / settings["tool"]["hatch"]["version"]["path"]).read_text(), re.M
    ) == [outfall_version()]


@pytest.mark.parametrize("group", [plugins.SINKS, plugins.WRAPPERS, plugins.RECOVERY])
def test_what_the_distribution_registers_is_there_and_is_what_is_installed(project: dict[str, Any], group: str) -> None:
    declared = project["entry-points"].get(group, {})
    for name, place in declared.items():
        module, _, attribute = place.partition(":")
        assert plugins.find(group, name) is getattr(import_module(module), attribute)
