"""The table's own record of a step: its last commit, and the position of that commit in the table's history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from outfall.capabilities import CleanUpContext, CommitterInitContext
from outfall.possession.record import StepRecord
from outfall.target_record import TargetRecord


class TableRecord(StepRecord):
    """Part of the commit that adds an epoch's files, so that neither exists without the other.

    A later generation does not write the record when it takes over, because that would be a commit of its own. Each
    commit replaces exactly the head that it has read, including the record. This prevents commits of an old driver.
    """

    head: int = 0
    """The snapshot, or the version, that the commit created: filled in by the table."""
    order: int = 0
    """Its position in the table's history, which only grows: filled in by the table."""
    revoked: int = 0
    """This generation and all older ones are never committed again, because some of their data was lost."""

    @classmethod
    def first(cls, context: CommitterInitContext | CleanUpContext) -> TableRecord:
        """Return the initial record of a step."""
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(incarnation=context.incarnation, step=context.step_id, created=created)

    @property
    def ready(self) -> bool:
        """See `StoredRecord.ready`."""
        return True

    @property
    def record(self) -> TargetRecord:
        """What is compared with the log."""
        epoch = None if self.epoch < 0 else self.epoch
        if self.revoked > self.generation:
            return TargetRecord(self.revoked, None, epoch)
        return TargetRecord(self.generation, self.token, epoch)

    def record_among(self, begun: Mapping[int, str]) -> TargetRecord:
        """What is compared with the BEGINs since that of the last completed epoch, inclusive.

        Only commits write it. It may belong to an older BEGIN if epochs without rows followed: see `goes_before`.
        """
        record = self.record
        return record if record.generation >= min(begun, default=0) else replace(record, token=None)

    def goes_before(self, published: int | None, begun: Mapping[int, str]) -> bool:
        """Whether a record of a forgotten BEGIN belongs to the last published epoch.

        Otherwise the table was restored from an older copy, or a copy of the recovery data was used. If the BEGIN is
        not forgotten, its token decides.
        """
        return self.generation >= min(begun, default=0) or self.epoch == (-1 if published is None else published)

    def committed(self, context: CommitterInitContext) -> TableRecord:
        """Return the record that the commit of an epoch writes."""
        return self.model_copy(
            update={
                "step": context.step_id,
                "generation": context.generation,
                "token": context.token,
                "epoch": context.epoch,
            }
        )

    def without(self, generation: int) -> TableRecord:
        """Return the record that the revocation of a generation writes."""
        return self.model_copy(update={"revoked": max(self.revoked, generation)})
