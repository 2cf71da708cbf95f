"""Bash completes commands, options and steps, by the script that `outfall completion` prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")

from tests.unit.support.command import FileStep, done


@pytest.fixture
def bash(tmp_path: Path) -> Path:
    """A script that loads the completion, and prints what it has for a line whose last word is unfinished."""
    program = tmp_path / "bin" / "outfall"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m outfall.cli "$@"\n')
    program.chmod(0o755)
    script = tmp_path / "complete.sh"
    script.write_text(
        f"PATH={program.parent}:$PATH\n{done('completion', 'bash')}\n"
        "complete -p outfall >/dev/null || exit 1\n"
        'COMP_WORDS=(outfall "$@") COMP_CWORD=$#\n'
        "_outfall_completion outfall\n"
        'echo "${COMPREPLY[*]}"\n'
    )
    return script


def completed(bash: Path, *words: str) -> list[str]:
    ended = subprocess.run(["bash", bash, *words], capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.split()


def test_bash_completes_commands_and_the_steps_of_a_local_store(bash: Path, tmp_path: Path) -> None:
    step = FileStep(tmp_path, "flights")
    step.write(0)
    FileStep(tmp_path, "archive").write(0)
    assert completed(bash, "st") == ["status"]
    assert completed(bash, "show", step.recovery, "") == ["archive", "flights"]
    assert completed(bash, "reset", step.recovery, "f") == ["flights"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_that_asks_this_command(shell: str) -> None:
    assert f"_OUTFALL_COMPLETE={shell}_complete" in done("completion", shell)
