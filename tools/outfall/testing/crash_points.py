"""Crashes at named steps of the protocol, in the test process or in real processes.

In the test process, `crash_at` raises at a step. Real drivers and Python workers react to environment variables if they
import this module. Only this module reads these variables:

- `OUTFALL_TEST_CRASH="after PREPARED"` kills the process (SIGKILL) at a step; `"after PREPARED#3"` at the third time.
- `OUTFALL_TEST_CRASH_ONCE` is a file that the crash creates, so that the next run continues.
- `OUTFALL_TEST_CRASH_ORDER` is a file for running processes. The first process that reaches the step in the file
  deletes the file. Then it dies (`kill <step>`), writes its id to `<file>.told` and continues (`tell <step>`), or
  writes its id to `<file>.stopped` and stops (SIGSTOP) until it gets SIGCONT (`stop <step>`).

With `crash_environment`, every Python process imports this module at startup, including Spark's workers if the driver
passes the environment on (`spark.executorEnv.…` on a cluster).
"""

from __future__ import annotations

import ast
import difflib
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from outfall.trace_points import listen

CRASH = "OUTFALL_TEST_CRASH"
ONCE = "OUTFALL_TEST_CRASH_ONCE"
ORDER = "OUTFALL_TEST_CRASH_ORDER"
SITE = Path(__file__).parent / "site"
"""Directory with a `sitecustomize` that imports this module in every Python process with it on the path."""


class CrashError(BaseException):
    """Simulates the death of the process. It is not an `Exception`, so no handler catches it."""


class Countdown:
    """Matches the n-th arrival at a step."""

    def __init__(self, spec: str) -> None:
        """Parse a step with an optional `#n` for the n-th time."""
        self._step, _, times = spec.partition("#")
        self._left = int(times or 1)

    def hit(self, step: str) -> bool:
        """Whether this arrival matches."""
        if step != self._step:
            return False
        self._left -= 1
        return self._left == 0


@contextmanager
def crash_at(spec: str | None, *, required: bool = False, steps: Iterable[str] = ()) -> Iterator[list[str]]:
    """Raise `CrashError` at a step in the block, and suppress the error at the end of the block.

    Args:
        spec: name of the step, with `#n` for the n-th time; `None` only records the reached steps.
        required: whether it is an error if the step is not reached.
        steps: additional step names. Known names are those of Outfall, and literal names in `reached` calls of imported
            modules.

    Yields:
        The reached steps in order; the list grows while the block runs.

    Raises:
        ConfigurationError: the block ended, and no step has this name.
        AssertionError: the block ended without reaching a `required` step.
    """
    seen: list[str] = []
    countdown = Countdown(spec or "")

    def listener(step: str) -> None:
        seen.append(step)
        if spec and countdown.hit(step):
            raise CrashError(spec)

    stop = listen(listener)
    try:
        yield seen
    except CrashError:
        return
    finally:
        stop()
    if spec is None:
        return
    if _name(spec) not in seen:
        _check_known(spec, steps)
    if required:
        raise AssertionError(f"the step {spec!r} was not reached, only: {', '.join(seen) or 'none'}")


def _name(spec: str) -> str:
    return spec.partition("#")[0]


def _check_known(spec: str, more: Iterable[str]) -> None:
    """Reject an unknown step name. The `ConfigurationError` suggests the nearest name."""
    from outfall.errors import ConfigurationError
    from outfall.testing.conformance.spying import STEPS

    name = _name(spec)
    literals, patterns = _steps_in_sources()
    names = {*literals, *STEPS, *more}
    if name in names or any(re.fullmatch(pattern, name) for pattern in patterns):
        return
    near = difflib.get_close_matches(name, names, n=1)
    raise ConfigurationError(
        f"there is no step {name!r}",
        do=f"write {near[0]!r}"
        if near
        else "import the module that reaches the step with a literal name, or pass the name in steps=",
    )


def _steps_in_sources() -> tuple[set[str], set[str]]:
    """Find step names in the sources of Outfall and of modules that call `reached`.

    Returns names, and patterns for names that are composed at run time.
    """
    import outfall

    # Of two copies of a module, Python imports the first on the path.
    roots = reversed([Path(root) for root in outfall.__path__])
    own = {path.relative_to(root): path for root in roots for path in root.rglob("*.py")}.values()
    modules = [module for module in list(sys.modules.values()) if getattr(module, "__dict__", {}).get("reached")]
    others = {Path(file) for module in modules if (file := getattr(module, "__file__", None))} - set(own)
    names: set[str] = set()
    patterns: set[str] = set()
    for path in [*own, *others]:
        found = _steps_in(path, path.stat().st_mtime_ns)
        names |= found[0]
        patterns |= found[1]
    return names, patterns


@cache
def _steps_in(path: Path, changed: int) -> tuple[set[str], set[str]]:
    text = path.read_text(encoding="utf-8") if path.suffix == ".py" else ""
    if "reached" not in text:
        return set(), set()
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.args]
    # A step name can also be an argument of a function that calls `reached`.
    steps = [value for call in calls for value in [*call.args, *(word.value for word in call.keywords)]]
    of_reached = [call.args[0] for call in calls if ast.unparse(call.func).rpartition(".")[2] == "reached"]
    texts = [node.value for node in (of_reached if _is_of_tests(path) else steps) if isinstance(node, ast.Constant)]
    patterns = {_pattern(node) for node in of_reached if isinstance(node, ast.JoinedStr)}
    return {text for text in texts if isinstance(text, str)}, patterns


def _is_of_tests(path: Path) -> bool:
    """Whether a file is a test that names steps, possibly misspelled."""
    import outfall

    roots = [Path(root) for root in outfall.__path__]
    return SITE.parent in path.parents or not any(root in path.parents for root in roots)


def _pattern(node: ast.JoinedStr) -> str:
    parts = (part.value if isinstance(part, ast.Constant) else None for part in node.values)
    return "".join(".+" if part is None else re.escape(str(part)) for part in parts)


def crash_environment(
    spec: str | None = None,
    *,
    once: str | os.PathLike[str] | None = None,
    order: str | os.PathLike[str] | None = None,
    steps: Iterable[str] = (),
) -> dict[str, str]:
    """Return environment variables that make Python processes die, report or stop at a step.

    Args:
        spec: the step at which each process dies, with `#n` for the n-th time.
        once: a file that the first dying process creates, so that no other process dies.
        order: a file that can be written later; see the module docstring.
        steps: additional step names, as in `crash_at`.

    Returns:
        Variables to add to an environment. `PYTHONPATH` has one directory before the path of this process, which hides
        any other `sitecustomize`.

    Raises:
        ConfigurationError: no step has this name.
    """
    if spec is not None:
        _check_known(spec, steps)
    paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = {CRASH: spec, ONCE: once, ORDER: order}
    variables = {name: os.fspath(value) for name, value in wanted.items() if value is not None}
    return variables | {"PYTHONPATH": os.pathsep.join(paths)}


def _arm() -> None:
    """Apply the environment variables to this process."""
    if spec := os.environ.get(CRASH):
        _die_at(spec, os.environ.get(ONCE))
    if order := os.environ.get(ORDER):
        _obey(order)


def _die_at(spec: str, once: str | None) -> None:
    countdown = Countdown(spec)

    def listener(step: str) -> None:
        if countdown.hit(step) and _first_time(once):
            os.kill(os.getpid(), signal.SIGKILL)

    listen(listener)


def _first_time(once: str | None) -> bool:
    if once is None:
        return True
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _obey(order: str) -> None:
    def listener(step: str) -> None:
        command = _taken(order, step)
        if command == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if command == "tell":
            _leave_id(order, "told")
        if command == "stop":
            _leave_session()
            _leave_id(order, "stopped")
            os.kill(os.getpid(), signal.SIGSTOP)
            Path(f"{order}.continued").touch()

    listen(listener)


def _taken(order: str, step: str) -> str | None:
    """Delete the order if it is for this step. Only one process succeeds."""
    try:
        command, _, wanted = Path(order).read_text().partition(" ")
        if wanted != step:
            return None
        os.rename(order, f"{order}.{os.getpid()}")
    except FileNotFoundError:
        return None
    return command


def _leave_session() -> None:
    """Survive the parent process: the kernel sends SIGHUP and SIGCONT to stopped members of an orphaned group."""
    with suppress(PermissionError):  # already a group leader
        os.setsid()


def _leave_id(order: str, what: str) -> None:
    written = Path(f"{order}.new")
    written.write_text(str(os.getpid()))
    written.rename(f"{order}.{what}")


_arm()
