"""What a table itself says of a step: how far its commits came, and at which place of the table's history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from outfall.capabilities import CleanUpContext, CommitterInitContext
from outfall.storage.marker import StepMarker
from outfall.target_record import TargetRecord


class TableMarker(StepMarker):
    """Stands in the very commit that adds an epoch's files, so that neither is there without the other.

    A later generation does not write it when it takes over, since that would be a commit of its own: what keeps a late
    driver from committing is that each commit replaces exactly the head that it has read, marker and all.
    """

    head: int = 0
    """The snapshot, or the version, that the commit made: filled in by the table."""
    order: int = 0
    """Its place in the table's history, which only grows: filled in by the table."""
    revoked: int = 0
    """Nothing of this generation or an older one is committed any more: some of it was lost."""

    @classmethod
    def first(cls, context: CommitterInitContext | CleanUpContext) -> TableMarker:
        """Return what a table that says nothing of a step is to say of it, before anything is committed."""
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(incarnation=context.incarnation, step=context.step_id, created=created)

    @property
    def record(self) -> TargetRecord:
        """What it says of its step."""
        epoch = None if self.epoch < 0 else self.epoch
        if self.revoked > self.generation:
            return TargetRecord(self.revoked, None, epoch)
        return TargetRecord(self.generation, self.token, epoch)

    def record_among(self, begun: Mapping[int, str]) -> TargetRecord:
        """What it says, to be compared with the BEGINs since the last completed epoch's, and that one.

        Only commits write it. So it may be of an older BEGIN, where epochs without rows came after: `goes_before`.
        """
        record = self.record
        return record if record.generation >= min(begun, default=0) else replace(record, token=None)

    def goes_before(self, published: int | None, begun: Mapping[int, str]) -> bool:
        """Whether a marker of a BEGIN that is forgotten is that of the epoch that was published last.

        Otherwise the table was restored from an older copy, or a copy of the recovery data was used. Where the BEGIN
        is not forgotten its token tells.
        """
        return self.generation >= min(begun, default=0) or self.epoch == (-1 if published is None else published)

    def committed(self, context: CommitterInitContext) -> TableMarker:
        """Return the marker as the commit of an epoch writes it."""
        return self.model_copy(
            update={
                "step": context.step_id,
                "generation": context.generation,
                "token": context.token,
                "epoch": context.epoch,
            }
        )

    def without(self, generation: int) -> TableMarker:
        """Return the marker as the commit writes it that revokes a generation."""
        return self.model_copy(update={"revoked": max(self.revoked, generation)})
