"""The steps that an epoch reaches, as crash points."""

from __future__ import annotations

from collections import Counter

from outfall.testing import crash_at
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
