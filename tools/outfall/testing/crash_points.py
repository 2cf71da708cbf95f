"""Crashes at named steps of the protocol, in a test's own process or in a real one.

In one process `crash_at` raises at a step. A real driver or Python worker does something at a step when this module is
imported in it and the environment says what; only this module reads these variables:

- `OUTFALL_TEST_CRASH="after PREPARED"` kills the process (SIGKILL) at a step; `"after PREPARED#3"` the third time.
- `OUTFALL_TEST_CRASH_ONCE` names a file that is created at the crash, so that the next run goes on.
- `OUTFALL_TEST_CRASH_ORDER` names a file, for processes that are running already. The first process that reaches the
  step in it takes the file away, and then dies (`kill <step>`), leaves its id in `<file>.told` and goes on
  (`tell <step>`), or leaves it in `<file>.stopped` and stops (SIGSTOP) until somebody continues it (`stop <step>`).

`crash_environment` gives an environment in which every Python process imports this module as it starts: Spark's workers
too, when the driver is started in it and passes it on (`spark.executorEnv.…` on a cluster).
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
"""A directory whose `sitecustomize` imports this module in every Python process that has it on its path."""


class CrashError(BaseException):
    """Stands for the death of the process. Not an `Exception`, so that nothing on the way handles it."""


class Countdown:
    """Matches the n-th time that a step is reached."""

    def __init__(self, spec: str) -> None:
        """Wait for a step, with `#n` for the n-th time."""
        self._step, _, times = spec.partition("#")
        self._left = int(times or 1)

    def hit(self, step: str) -> bool:
        """Whether this is the time."""
        if step != self._step:
            return False
        self._left -= 1
        return self._left == 0


@contextmanager
def crash_at(spec: str | None, *, required: bool = False, steps: Iterable[str] = ()) -> Iterator[list[str]]:
    """Raise `CrashError` at a step within the block, which swallows it.

    Args:
        spec: the step's name, with `#n` for the n-th time it is reached; `None` only notes what is reached.
        required: whether it is an error that the step was not reached.
        steps: names of further steps. Known are those of Outfall, and of each imported module that has `reached` and
            calls it with the name as a literal.

    Yields:
        The steps that were reached, in order; filled as the block runs.

    Raises:
        ConfigurationError: the block came to its end, and no step has this name.
        AssertionError: the block came to its end, and the step is `required`.
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
    """Refuse a name that no step has.

    Raises:
        ConfigurationError: saying which name is nearest.
    """
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
        else "import the module that reaches it, with its name as a literal, or name it in steps=",
    )


def _steps_in_sources() -> tuple[set[str], set[str]]:
    """Find the names of steps in the sources of Outfall and of modules that reach some.

    Returns:
        Names, and patterns of those that are put together as they are reached.
    """
    import outfall

    # Of two copies of a module the first on the path is the one that is imported.
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
    # A step may also be handed on, as an argument of whatever reaches it in the end.
    steps = [value for call in calls for value in [*call.args, *(word.value for word in call.keywords)]]
    of_reached = [call.args[0] for call in calls if ast.unparse(call.func).rpartition(".")[2] == "reached"]
    texts = [node.value for node in (of_reached if _is_of_tests(path) else steps) if isinstance(node, ast.Constant)]
    patterns = {_pattern(node) for node in of_reached if isinstance(node, ast.JoinedStr)}
    return {text for text in texts if isinstance(text, str)}, patterns


def _is_of_tests(path: Path) -> bool:
    """Whether a file names steps to crash at them, and so may misspell one."""
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
    """Return the variables that have Python processes die, tell or stop at a step.

    Args:
        spec: the step at which each process dies, with `#n` for the n-th time it reaches it.
        once: a file that the first process to die creates, so that no other dies.
        order: a file that can be written later, see the module.
        steps: names of further steps, as `crash_at` takes them.

    Returns:
        Variables to be added to an environment; `PYTHONPATH` is this process's with one directory before it. A
        `sitecustomize` that the environment has by itself is not imported then.

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
    """Do in this process what the environment says."""
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
    """Take the order away if it is for this step: one process only succeeds."""
    try:
        command, _, wanted = Path(order).read_text().partition(" ")
        if wanted != step:
            return None
        os.rename(order, f"{order}.{os.getpid()}")
    except FileNotFoundError:
        return None
    return command


def _leave_session() -> None:
    """Outlive whoever started this process: a stopped member of an orphaned group is hung up and woken."""
    with suppress(PermissionError):  # it leads a group already
        os.setsid()


def _leave_id(order: str, what: str) -> None:
    written = Path(f"{order}.new")
    written.write_text(str(os.getpid()))
    written.rename(f"{order}.{what}")


_arm()
