"""The committer of table formats: what it commits, what it refuses, and what it calls lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outfall.capabilities import CommitRequest
from outfall.errors import FencedError, LostCommittableError, OutfallError, TargetLostError, TransientError
from outfall.tables.data_file import EpochFiles
from outfall.tables.record import TableRecord
from tests.unit.support.memory_table import TableLink, TableStore
from tests.unit.support.table_epochs import INCARNATION, attempted, commit, committer, ids, staged, token_of

ROWS = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]
MORE = [{"id": 3, "text": "c"}]
FIRST = {1: token_of(1)}


@pytest.fixture
def link() -> TableLink:
    return TableLink(TableStore(spec=["text"]))


def lost(link: TableLink, files: EpochFiles, *begin: int, **more: Any) -> str:
    """Commit what is lost, and say why it is."""
    request = CommitRequest(files)
    committer(link, *begin, **more).commit([request])
    assert request.outcome.kind == "lost"
    return request.outcome.reason


def test_an_epoch_is_one_snapshot_with_its_record(link: TableLink) -> None:
    assert commit(link, staged(link, ROWS)) == "committed"
    (snapshot,) = link.store.history
    assert ids(link) == [1, 2]
    record = link.store.state and link.store.state.records[INCARNATION]
    assert record
    assert (record.epoch, record.generation, record.token, record.head, record.order) == (
        0, 1, token_of(1), snapshot.id, snapshot.order,
    )  # fmt: skip


def test_an_epoch_that_is_there_is_not_committed_again(link: TableLink) -> None:
    files = staged(link, ROWS)
    commit(link, files)
    assert commit(link, files) == "already committed"
    assert len(link.store.history) == 1


def test_epochs_of_other_writers_stay_between_ours(link: TableLink) -> None:
    commit(link, staged(link, ROWS))
    link.store.append({"id": 100, "text": "theirs"})
    link.store.compact()
    link.store.expire()
    assert commit(link, staged(link, MORE, 2, 1, published=0), 2, 1, begun={**FIRST, 2: token_of(2)}) == "committed"
    assert ids(link) == [1, 2, 3, 100]


@pytest.mark.parametrize("fate", ["lost", "landed", "late"])
def test_an_answer_that_is_missing_is_settled_by_loading_anew(link: TableLink, fate: str) -> None:
    link.fates = [fate]
    assert commit(link, staged(link, ROWS)) == ("already committed" if fate == "landed" else "committed")
    while link.store.late:
        link.store.arrive()
    assert ids(link) == [1, 2]
    assert len(link.store.history) == 1


def test_commits_that_never_get_through_are_left_to_the_engines_pauses(link: TableLink) -> None:
    link.fates = ["lost"] * 5
    files = staged(link, ROWS)
    assert commit(link, files) == "retry"
    assert commit(link, files) == "committed"


def test_a_catalogue_that_does_not_answer_is_tried_later(link: TableLink) -> None:
    files = staged(link, ROWS)
    link.gone = True
    assert commit(link, files) == "retry"


# --- other drivers


def test_an_older_driver_is_fenced(link: TableLink) -> None:
    late = staged(link, ROWS)
    commit(link, staged(link, MORE, 2), 2, begun={**FIRST, 2: token_of(2)})
    with pytest.raises(FencedError, match="generation 2"):
        commit(link, late)
    assert ids(link) == [3]


@pytest.mark.parametrize("mine", [1, 2], ids=["the same generation", "a newer generation"])
def test_the_driver_of_another_copy_of_the_log_is_fenced(link: TableLink, mine: int) -> None:
    commit(link, staged(link, ROWS, token="ff" * 8), token="ff" * 8)
    begun = {**FIRST, mine: token_of(mine)}
    with pytest.raises(FencedError, match="copied"):
        commit(link, staged(link, MORE, mine, 1), mine, 1, begun=begun)
    assert ids(link) == [1, 2]


def test_epochs_without_rows_may_lie_between_two_with_rows(link: TableLink) -> None:
    """They commit nothing, so that the table names a BEGIN that the recovery data has forgotten."""
    commit(link, staged(link, ROWS))
    begun = {4: token_of(4), 7: token_of(7)}
    assert commit(link, staged(link, MORE, 7, 2, published=0), 7, 2, begun=begun) == "committed"
    assert ids(link) == [1, 2, 3]


@pytest.mark.parametrize("published", [None, 0, 2])
def test_a_forgotten_begin_must_be_that_of_the_epoch_that_was_published_last(
    link: TableLink, published: int | None
) -> None:
    """Otherwise the table was restored, or another copy of the log has committed."""
    commit(link, staged(link, ROWS, 1, 1), 1, 1)
    files = staged(link, MORE, 7, 5, published=published)
    with pytest.raises(TargetLostError, match="its last epoch of this step is 1"):
        commit(link, files, 7, 5, begun={4: token_of(4), 7: token_of(7)})
    assert ids(link) == [1, 2]


def test_a_first_epoch_that_is_there_without_its_marker_is_not_committed_again(link: TableLink) -> None:
    files = staged(link, ROWS)
    commit(link, files)
    link.store.remove_record()
    with pytest.raises(TargetLostError, match="epoch 0 was committed"):
        commit(link, files)
    assert ids(link) == [1, 2]


def test_an_epoch_that_another_generation_committed_is_not_taken_for_this_one(link: TableLink) -> None:
    """It was given up and written anew; that it is there all the same nobody should build on."""
    commit(link, staged(link, ROWS))
    with pytest.raises(TargetLostError, match="generation 1"):
        commit(link, staged(link, MORE, 2), 2, begun={**FIRST, 2: token_of(2)})


# --- what was taken back


def rolled_back(store: TableStore) -> None:
    store.rollback()


def rolled_back_and_written_on(store: TableStore) -> None:
    store.rollback()
    store.append({"id": 100, "text": "x"})


def rolled_back_and_expired(store: TableStore) -> None:
    store.rollback()
    store.expire()


def rolled_back_written_on_and_expired_but_for_its_parent(store: TableStore) -> None:
    """The order of the head is higher than the record's; the chain of snapshots leaps over it."""
    rolled_back_and_written_on(store)
    state = store.state
    assert state is not None
    kept = {number: found for number, found in state.snapshots.items() if number in (1, state.head)}
    object.__setattr__(state, "snapshots", kept)


TAKEN_BACK: list[Callable[[TableStore], None]] = [
    rolled_back, rolled_back_and_written_on, rolled_back_and_expired,
    rolled_back_written_on_and_expired_but_for_its_parent, TableStore.remove_record,
]  # fmt: skip


@pytest.mark.parametrize("roll_back", TAKEN_BACK, ids=lambda found: found.__name__)
def test_a_table_that_lost_an_epoch_is_refused(link: TableLink, roll_back: Callable[[TableStore], None]) -> None:
    link.store.append({"id": 99, "text": "x"})
    commit(link, staged(link, ROWS))
    files = staged(link, MORE, 2, 1, published=0)
    roll_back(link.store)
    found = ids(link)
    with pytest.raises(TargetLostError):
        commit(link, files, 2, 1, begun={**FIRST, 2: token_of(2)})
    assert ids(link) == found


def test_a_rollback_behind_others_only_is_none_of_ours(link: TableLink) -> None:
    commit(link, staged(link, ROWS))
    link.store.append({"id": 100, "text": "x"})
    link.store.rollback()
    assert commit(link, staged(link, MORE, 2, 1, published=0), 2, 1, begun={**FIRST, 2: token_of(2)}) == "committed"


# --- what is lost


def made_anew(store: TableStore) -> None:
    store.drop()
    store.create({"id": "int64", "text": "string"}, ["text"])


def partitioned_anew(store: TableStore) -> None:
    store.partition_by("id")


def with_another_column_of_the_name(store: TableStore) -> None:
    store.drop_column("id")
    store.add_column("id", "int64")


def without_its_files(store: TableStore) -> None:
    for path in store.paths():
        store.delete(path)


LOST: list[Callable[[TableStore], None]] = [
    TableStore.drop, made_anew, partitioned_anew, with_another_column_of_the_name, without_its_files,
]  # fmt: skip


@pytest.mark.parametrize("lose", LOST, ids=lambda found: found.__name__)
@pytest.mark.parametrize("asked", ["to commit", "to look"])
def test_what_no_longer_fits_or_is_not_there_is_lost(
    link: TableLink, lose: Callable[[TableStore], None], asked: str
) -> None:
    files = staged(link, ROWS)
    lose(link.store)
    request = CommitRequest(files)
    mine = committer(link)
    (mine.commit if asked == "to commit" else mine.find_lost)([request])
    assert request.outcome.kind == "lost"
    assert mine.nothing_published([request])
    assert not link.store.state or link.store.rows() == []


@pytest.mark.parametrize("lose", [partitioned_anew, with_another_column_of_the_name, without_its_files])
def test_what_was_lost_is_committed_by_nobody_any_more(link: TableLink, lose: Callable[[TableStore], None]) -> None:
    """A driver that had loaded the table before may be anywhere on its way."""
    files = staged(link, ROWS)
    stale = TableLink(link.store, fates=["late"] * 5)
    assert commit(stale, files) == "retry"
    before = link.store.state
    lose(link.store)
    lost(link, files)
    while link.store.late:
        link.store.arrive()
    assert link.store.rows() == []
    assert before is not None
    object.__setattr__(link.store.state, "columns", before.columns)
    object.__setattr__(link.store.state, "spec_id", before.spec_id)
    reason = "another driver found that data of this generation was lost, and revoked it"
    assert lost(stale, files, token=token_of(1)) == reason
    assert commit(link, staged(link, MORE, 2), 2, begun={**FIRST, 2: token_of(2)}) == "committed"


def test_what_is_revoked_stays_so() -> None:
    record = TableRecord(incarnation=INCARNATION, generation=1, token=token_of(1), epoch=0)
    revoked = record.without(3)
    assert revoked.without(2).revoked == 3
    assert (revoked.record.generation, revoked.record.epoch) == (3, 0)


def test_revoking_moves_the_head_once(link: TableLink) -> None:
    files = staged(link, ROWS)
    for _ in range(3):
        committer(link).revoke([CommitRequest(files)])
    assert len(link.store.history) == 1
    assert committer(link).nothing_published([CommitRequest(files)])


def test_what_is_committed_cannot_be_revoked(link: TableLink) -> None:
    files = staged(link, ROWS)
    commit(link, files)
    with pytest.raises(LostCommittableError, match="already"):
        committer(link).revoke([CommitRequest(files)])
    assert not committer(link).nothing_published([CommitRequest(files)])


def test_what_is_committed_is_not_lost_when_others_have_rewritten_its_files(link: TableLink) -> None:
    files = staged(link, ROWS)
    commit(link, files)
    link.store.compact()
    link.store.expire()
    link.store.remove_orphans()
    request = CommitRequest(files)
    committer(link).find_lost([request])
    assert request.outcome.kind == "unsignalled"
    assert commit(link, files) == "already committed"


def test_nothing_is_known_of_a_commit_under_way_until_it_is_revoked(link: TableLink) -> None:
    files = staged(link, ROWS)
    assert not committer(link).nothing_published([CommitRequest(files)])


def test_looking_waits_for_a_catalogue_and_then_says_that_it_could_not(link: TableLink) -> None:
    files = staged(link, ROWS)
    link.store.remove_orphans()
    link.fates = ["lost"] * 20
    with pytest.raises(TransientError, match="could not be resolved"):
        committer(link).find_lost([CommitRequest(files)])


def test_files_that_cannot_be_looked_at_are_not_lost(link: TableLink, monkeypatch: pytest.MonkeyPatch) -> None:
    files = staged(link, ROWS)

    def fail(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(link, "open", fail)
    assert commit(link, files) == "retry"


def test_files_that_this_process_has_just_recorded_are_not_looked_at(link: TableLink) -> None:
    from outfall.tables import data_file

    files = staged(link, ROWS).model_copy(update={"recorded_by": data_file._PROCESS})
    link.store.remove_orphans()
    assert commit(link, files) == "committed"
    old = files.model_copy(update={"recorded_at": files.recorded_at - 4000})
    assert not old.is_fresh()


# --- overwriting


def by_text(link: TableLink) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in sorted(link.store.rows(), key=lambda row: row["id"]):
        found.setdefault(row["text"], []).append(row["id"])
    return found


def test_overwriting_replaces_the_partitions_that_an_epoch_touches(link: TableLink) -> None:
    link.store.append({"id": 10, "text": "a"}, {"id": 11, "text": "other"})
    commit(link, staged(link, ROWS), write_mode="overwrite_partitions")
    assert by_text(link) == {"a": [1], "b": [2], "other": [11]}
    assert len(link.store.history) == 2, "in one commit"


def test_overwriting_a_table_without_partitions_replaces_all_of_it() -> None:
    link = TableLink(TableStore())
    link.store.append({"id": 10, "text": "a"})
    commit(link, staged(link, ROWS), write_mode="overwrite_partitions")
    assert ids(link) == [1, 2]


def test_first_contact_overwrites_once(link: TableLink) -> None:
    link.store.append({"id": 10, "text": "other"})
    commit(link, staged(link, ROWS), on_existing="overwrite")
    link.store.append({"id": 11, "text": "other"})
    begun = {**FIRST, 2: token_of(2)}
    commit(link, staged(link, MORE, 2, 1, published=0), 2, 1, begun=begun, on_existing="overwrite")
    assert ids(link) == [1, 2, 3, 11]


# --- errors


def test_no_error_holds_a_value_of_a_row(link: TableLink) -> None:
    files = staged(link, [{"id": 1, "text": "SECRET"}])
    assert "SECRET" not in f"{files!s}{files!r}"
    link.store.remove_orphans()
    assert "SECRET" not in lost(link, files)


def test_tasks_of_two_drivers_are_not_gathered(link: TableLink) -> None:
    from outfall.capabilities import CommittableMessage

    mixed = [CommittableMessage(attempted(link, ROWS, generation), 0, generation) for generation in (1, 2)]
    with pytest.raises(OutfallError, match="different drivers"):
        EpochFiles.gather(mixed, overwrite=False)
