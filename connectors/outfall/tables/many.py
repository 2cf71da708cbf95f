"""Many tables in one epoch: each is that of a sink with this table only, and has a commit of its own.

```
task    name ──> sink of this table: check_target · open_target ──> its files
driver  a committable per table, all in PREPARED ──> a commit per table, several at the same time, until all are done
log     COMMITTED names each table that is done; COMPLETED has the newest epoch of each table that was ever written
```

What the log has of a table is what it has of the only one: whether an epoch was published to it, and which. So a table
that was dropped or restored is noticed when rows name it again, and one that is new is met at its first row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from outfall.capabilities import CommitRequest, Committer, CommitterInitContext, TargetContext
from outfall.errors import ResponsesError
from outfall.tables.commit import TableCommitter
from outfall.tables.data_file import EpochFiles
from outfall.tables.table import FileLayout

Request = CommitRequest[EpochFiles]

TABLES_AT_ONCE = 8
"""How many tables are committed at the same time: a commit mostly waits for the catalog and the store."""


def context_of_table(context: TargetContext[Any], name: str) -> TargetContext[Any]:
    """Return what the recovery data says of one of many tables."""
    published = context.children_published.get(name)
    return replace(
        context,
        published=published,
        completed=None if published is None else context.completed,
        children_published={},
        states={},
        found=None,
    )


def check_layout(files: EpochFiles, now: FileLayout | None) -> None:
    """Compare the files of an epoch with their table as it is, before the epoch is recorded.

    Afterwards, other tables of the epoch may be committed before the change is noticed, and the epoch can neither be
    completed nor written again. Raises `ResponsesError`: the epoch is written again.
    """
    mismatch = "it was dropped" if now is None else files.layout.mismatch(now.layout)
    if mismatch is not None:
        raise ResponsesError(
            f"the table {files.table!r} has changed while its rows were written",
            why=mismatch,
            do="retry the epoch",
        )


class ManyTablesCommitter(Committer[EpochFiles]):
    """Passes each request to the committer of its table. Every table is a group: others go on if one fails.

    `committer_of` makes the committer of a table, for the context of this table. `at_once` is how many are committed at
    the same time.
    """

    strict = True

    def __init__(
        self,
        committer_of: Callable[[str, CommitterInitContext], TableCommitter],
        context: CommitterInitContext,
        at_once: int = 1,
    ) -> None:
        self._committer_of = committer_of
        self._context = context
        self.at_once = at_once

    def group(self, committable: EpochFiles) -> str:
        return committable.table or ""

    def commit(self, requests: Sequence[Request]) -> None:
        for committer, own in self._by_table(requests):
            committer.commit(own)
            for request in own:
                self._context.metrics.table(self.group(request.committable), request.committable.rows)

    def find_lost(self, requests: Sequence[Request]) -> None:
        for committer, own in self._by_table(requests):
            committer.find_lost(own)

    def revoke(self, requests: Sequence[Request]) -> None:
        for committer, own in self._by_table(requests):
            committer.revoke(own)

    def nothing_published(self, requests: Sequence[Request]) -> bool:
        """Decide by the records: the lost files are revoked, and the engine revokes the others before it goes on."""
        return all(
            committer.nothing_published(own)
            if any(request.outcome.kind == "lost" for request in own)
            else committer.is_unpublished()
            for committer, own in self._by_table(requests)
        )

    def _by_table(self, requests: Sequence[Request]) -> list[tuple[TableCommitter, list[Request]]]:
        found: dict[str, list[Request]] = {}
        for request in requests:
            found.setdefault(self.group(request.committable), []).append(request)
        return [(self._of(name, own[0].committable), own) for name, own in found.items()]

    def _of(self, name: str, files: EpochFiles) -> TableCommitter:
        # The log has an epoch of the name, which the table does not have if it was created again.
        context = replace(self._context, published=files.published, children_published={})
        return self._committer_of(name, context)
