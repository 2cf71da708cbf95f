"""The workflows run what the repository has, by commands that run anywhere, and of others only what is pinned."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tests.documents import ROOT

yaml = pytest.importorskip("yaml")

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").glob("*.yml")}
SETS_UP = ("apt-get ", "git config ", "python3 -m venv .venv && .venv/bin/pip install -q nox")


def jobs() -> dict[str, Any]:
    return {f"{name} {job}": value for name, workflow in WORKFLOWS.items() for job, value in workflow["jobs"].items()}


def steps() -> list[dict[str, Any]]:
    return [step for job in jobs().values() for step in job["steps"]]


def keys(name: str) -> list[str]:
    """The keys of a mapping in noxfile.py. It is not imported: nox is not everywhere where tests run."""
    (found,) = [
        node.value
        for node in ast.walk(ast.parse((ROOT / "noxfile.py").read_text()))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and ast.unparse(node.targets[0]) == name
    ]
    return [ast.literal_eval(key) for key in found.keys if key]


def test_each_action_is_pinned_to_a_commit_and_names_its_version() -> None:
    lines = [
        line for path in (ROOT / ".github" / "workflows").glob("*.yml") for line in path.read_text().splitlines()
        if "uses:" in line
    ]  # fmt: skip
    assert len(lines) == sum("uses" in step for step in steps()) > 0
    assert [line for line in lines if not re.search(r"uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_what_runs_is_a_command_of_the_repository() -> None:
    readme, run = (ROOT / "README.md").read_text(), [step["run"] for step in steps() if "run" in step]
    ours = [command for command in run if not command.startswith(SETS_UP)]
    assert ours
    for command in ours:
        first = command.split()[0]
        assert command in readme or first == ".venv/bin/nox" or (ROOT / first).is_file(), command
    assert any(command in readme for command in ours)


@pytest.mark.parametrize(
    ("job", "axis", "name"), [("checks spark", "spark", "SPARKS"), ("weekly peers", "area", "PEERS")]
)
def test_each_spark_and_each_peer_of_noxfile_has_its_job(job: str, axis: str, name: str) -> None:
    assert jobs()[job]["strategy"]["matrix"][axis] == keys(name)


def test_workflows_may_only_read_and_keep_no_credentials() -> None:
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())
    assert not any("permissions" in job for job in jobs().values())
    checkouts = [step for step in steps() if "actions/checkout" in step.get("uses", "")]
    assert len(checkouts) == len(jobs())
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)
    assert "secrets." not in "".join(Path(path).read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml"))
