"""Delivering what a sink holds back, while its query does not run."""

from __future__ import annotations

import os
from typing import Any

from outfall.errors import ConfigurationError
from outfall.protocol import draining
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.coordinator import EpochCoordinator, EpochOptions
from outfall.protocol.messages import EpochResult
from outfall.recovery.config import RecoveryConfig
from outfall.recovery.names import check_step_id
from outfall.recovery.url import recovery_config
from outfall.spark.stream import checkpoint_recovery


def drain(
    sink: Any,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    recovery: str | RecoveryConfig | None = None,
    step_id: str = "sink",
    commit: CommitPolicy | None = None,
) -> EpochResult | None:
    """Deliver what a sink holds back across epochs. Runs in this process and needs no Spark session.

    Stop the query first: one that runs is fenced and fails. Started again, it goes on at its next batch. A drain that
    fails or is killed can be repeated, and what it recorded is finished by whatever runs next; each row is delivered
    once, as in any epoch.

    Args:
        sink: the query's sink, with the same options.
        checkpoint: the query's checkpoint location, where its recovery data lies beside it.
        recovery: where the step's log is, if not with the checkpoint.
        step_id: the step's id.
        commit: how long committing is tried.

    Returns:
        What was delivered; `None` when nothing was held back.

    Raises:
        ConfigurationError: neither or both of `checkpoint` and `recovery` are given, or the sink holds nothing back.
        OutfallError: see `EpochCoordinator`.
    """
    if checkpoint is not None and recovery is not None:
        raise ConfigurationError("checkpoint and recovery are both given", do="give the one where the step's log is")
    location = recovery_config(recovery if recovery is not None else checkpoint_recovery(checkpoint))
    options = EpochOptions(commit=commit or CommitPolicy())
    check_step_id(step_id)
    return draining.drain(lambda: EpochCoordinator(sink, step_id, location, options=options))
