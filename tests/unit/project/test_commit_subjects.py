"""Subjects of commits are short, imperative and without a relative clause."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import commit_subjects
from tests.commit_subjects import faults, subjects
from tests.programs import program


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which git makes repositories, also where a hook of this one runs the tests."""
    for name in os.environ:
        if name.startswith("GIT_"):
            monkeypatch.delenv(name)
    return tmp_path


def test_each_subject_since_the_rule_keeps_it() -> None:
    program("git")
    assert {subject: found for subject in subjects() if (found := faults(subject))} == {}


@pytest.mark.parametrize(
    "subject",
    [
        "Stop the Redis example when its job has ended",
        "Pass the schema of the rows to each task",
        "Say that tables are created through one node of a cluster, since their lock holds on one only",
        "Bring a server for Redis' tests from a wheel, so that they run by default",
    ],
)
def test_what_the_rule_allows(subject: str) -> None:
    assert faults(subject) == []


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("Count " + "a" * 95, "101 characters"),
        ("stop the example", "capitalized verb"),
        ("Tests of Redis run", "'Tests' is not imperative"),
        ("Added a test", "'Added' is not imperative"),
        ("Adding a test", "'Adding' is not imperative"),
        ("End the example too, for which it waited forever", "'which'"),
        ("Fetch by one function, that three modules had repeated", "'that'"),
        ("Stop a driver whose host is gone", "'whose'"),
        ("Stop the example.", "period"),
    ],
)
def test_what_the_rule_refuses(subject: str, why: str) -> None:
    (found,) = faults(subject)
    assert why in found


def test_where_there_is_no_history_no_subject_is_checked(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_subjects, "ROOT", elsewhere)
    assert subjects() == []  # an exported tree
    commit = [
        program("git"),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "Adds all",
    ]
    for command in ([program("git"), "init", "-q"], commit):
        subprocess.run(command, cwd=elsewhere, check=True)
    assert subjects() == []  # another history


def test_a_clone_of_the_newest_commits_has_their_subjects(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = [program("git"), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([program("git"), "init", "-q", "whole"], cwd=elsewhere, check=True)
    for message in ("Add one", "Adds two"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", message], cwd=elsewhere / "whole", check=True)
    subprocess.run(
        [program("git"), "clone", "-q", "--depth=1", f"file://{elsewhere}/whole", "part"], cwd=elsewhere, check=True
    )
    monkeypatch.setattr(commit_subjects, "ROOT", elsewhere / "part")
    assert subjects() == ["Adds two"]
