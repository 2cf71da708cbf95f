"""The steps that an epoch reaches, as crash points, and what others do meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from outfall.errors import OutfallError
from outfall.testing import crash_at
from outfall.trace_points import listen
from tests.unit.support.setups import Setup


def points(setup_type: type[Setup], epoch: int, name: str, *, recovery: str | None = None) -> list[str]:
    """Every step of a clean run of the epoch, each time that it is reached: `"after commit"`, `"after commit#2"`."""
    setup = setup_type(recovery)
    driver = setup.driver()
    for before in range(epoch):
        setup.run(driver, before)
    with crash_at(None) as seen:
        setup.run(driver, epoch, name)
    times: Counter[str] = Counter()
    specs = []
    for step in seen:
        times[step] += 1
        specs.append(f"{step}#{times[step]}")
    return specs


@contextmanager
def meanwhile(point: str, act: Callable[[], object]) -> Iterator[None]:
    """Within the block, run something else the n-th time that a step is reached, and then go on."""
    step, _, times = point.partition("#")
    seen: Counter[str] = Counter()
    acting = False

    def listener(reached: str) -> None:
        nonlocal acting
        if acting or reached != step:
            return
        seen[step] += 1
        if seen[step] == int(times or 1):
            acting = True
            act()
            acting = False

    stop = listen(listener)
    try:
        yield
    finally:
        stop()


def error_of(act: Callable[[], object]) -> OutfallError | None:
    try:
        act()
    except OutfallError as error:
        return error
    return None
