"""Keys of rows: names in the target, NULL in them, and which of two rows stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from outfall.errors import OutfallError, ValueRefusedError
from outfall.testing.conformance.driver import RemoteTasks
from outfall.testing.conformance.faults import ConformanceError, check, when
from outfall.testing.conformance.harness import gives
from outfall.testing.conformance.rows import Content, frozen
from outfall.testing.conformance.trial import TASKS
from outfall.testing.conformance.trials import Trials


@check
def similar_keys(trials: Trials) -> None:
    """Rows of different keys get one name in the target, which is made of the key: all but one are missing."""
    trials.needs(gives(trials.harness, "similar_rows"), "the test has no similar_rows()")
    for pair in combinations(trials.harness.similar_rows(), 2):
        trial = trials.new()
        harness, taken = trial.harness, 0
        with when(f"{pair[0]!r} was written, and {pair[1]!r} in the next epoch"):
            driver = RemoteTasks(harness.make_sink(trial.target), trial.recovery, options=harness.options())
            for epoch, row in enumerate(pair):
                try:
                    driver.run_epoch(epoch, [[(harness.key(0), row) if trial.fixed else row]])
                except ValueRefusedError:
                    break
                taken += 1
            trial.drain()
            found = len(list(harness.read(trial.target)))
            if found != taken:
                raise ConformanceError(
                    f"the target has {found} rows, and {taken} were accepted",
                    do="escape what divides the parts of a key, or reject rows that could have the name of another",
                )


@check
def null_in_a_key(trials: Trials) -> None:
    """Rows with NULL in their key replace each other within an epoch, and not over two epochs, or the reverse.

    In SQL, a NULL equals no other one, but DISTINCT and GROUP BY take all of them for equal.
    """
    replaces = trials.resolved.replaces_rows() or gives(trials.harness, "null_key_row")
    trials.needs(replaces, "no row replaces another one")
    trials.needs_from_author("null_key_row")
    together, apart = _state(trials, [[0, 1]]), _state(trials, [[0], [1]])
    if None not in (together, apart) and together != apart:
        raise ConformanceError(
            f"two rows with NULL in their key are {_counted(together)} after one epoch, {_counted(apart)} after two",
            do="reject rows with NULL in a key with an outfall.errors.ValueRefusedError, or compare keys alike within"
            " an epoch and with the target",
        )


@check
def older_row_later(trials: Trials) -> None:
    """A row replaces a newer one that an earlier epoch has written, although the sink says that it keeps those."""
    resolved = trials.resolved
    keeps = resolved.replaces_rows() and not resolved.may_replace_newer_rows()
    trials.needs(keeps, "the sink does not say that it keeps newer rows")
    trials.needs_from_author("replacing_row")
    trial = trials.new()
    driver = trial.driver()
    for epoch, version in enumerate((1, 0)):
        rows = trial.replacing([(number, version) for number in range(TASKS)])
        trial.note(driver.run_epoch(epoch, [[row] for row in rows]), Content(epoch, ()))
    with when("each row came in an epoch, and an older one of its key in the next"):
        trial.drain(driver)
        trial.verify_newest(
            [(number, 1) for number in range(TASKS)],
            do="let the target compare each row with the stored one; or return False in"
            " DeclaresGuarantee.keeps_newer_rows, and outfall replay rejects the sink",
        )


def _state(trials: Trials, epochs: Sequence[Sequence[int]]) -> Counter[Any] | None:
    """Return what the target shows after these versions of the row; `None` if the sink rejected one."""
    trial = trials.new()
    harness = trial.harness
    driver = RemoteTasks(harness.make_sink(trial.target), trial.recovery, options=harness.options())
    try:
        for epoch, versions in enumerate(epochs):
            rows = [harness.null_key_row(version) for version in versions]
            driver.run_epoch(epoch, [[(harness.key(0), row) for row in rows] if trial.fixed else rows])
        trial.drain()
    except OutfallError:
        return None
    return Counter(map(frozen, harness.read(trial.target)))


def _counted(state: Counter[Any] | None) -> str:
    rows = (state or Counter()).total()
    return f"{rows} row" if rows == 1 else f"{rows} rows"
