"""The rule for the subjects of commits, and the commits that it holds for.

`python -m tests.commit_subjects` prints each subject that breaks it; a unit test checks the same.
"""

from __future__ import annotations

import re
import subprocess
import sys

from tests.documents import ROOT
from tests.programs import installed

BEFORE = "8827bf9bec4e1094838cc2f49226f9fa87304b0b"
"""The last commit without the rule."""
LONGEST = 100

_WORD = re.compile(r"[A-Z][a-z]+(?![\w'])")
_NOT_IMPERATIVE = re.compile(r"(?:ed|ing|[^s]s)$")
_IMPERATIVE = {"Bring", "Embed", "Exceed", "Feed", "Focus", "Need", "Ping", "Proceed", "Seed", "Speed"}
"""Verbs that end as other forms do."""
_RELATIVE = re.compile(r"\b(?:which|whose|whom)\b|, (?:that|who|where)\b")


def faults(subject: str) -> list[str]:
    """Return what is wrong with a subject: at most 100 characters, imperative, no relative clause."""
    found = []
    if len(subject) > LONGEST:
        found.append(f"it has {len(subject)} characters, and {LONGEST} are allowed")
    first = _WORD.match(subject)
    if first is None:
        found.append("it does not begin with a capitalized verb")
    elif _NOT_IMPERATIVE.search(first[0]) and first[0] not in _IMPERATIVE:
        found.append(f"{first[0]!r} is not imperative: begin as in 'Add', 'Count', 'Refuse'")
    if relative := _RELATIVE.search(subject):
        found.append(f"{relative[0].lstrip(', ')!r} begins a relative clause: say it in the text below the subject")
    if subject.endswith("."):
        found.append("it ends with a period")
    return found


def subjects() -> list[str]:
    """Return the subjects since the rule, newest first; none without git, or in a repository with another history."""
    git = installed("git")
    if git is None or not (ROOT / ".git").exists():
        return []
    # A clone of the newest commits only does not have the one before the rule, so the rule holds for all of them.
    known = _run(git, "cat-file", "-e", f"{BEFORE}^{{commit}}") is not None
    shallow = (_run(git, "rev-parse", "--is-shallow-repository") or "").strip() == "true"
    since = [f"^{BEFORE}"] if known else []
    log = _run(git, "log", "--no-merges", "--format=%s", "HEAD", *since) if known or shallow else ""
    return (log or "").splitlines()


def _run(*command: str) -> str | None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def main() -> int:
    """Print each fault. Returns 1 if there is one."""
    wrong = [f"{subject}\n    {fault}" for subject in subjects() for fault in faults(subject)]
    print("\n".join(wrong) or "every subject keeps the rule")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
