"""The log of a batch job that is never resumed: it ends with the job, and so must everything that only it knows."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing

from outfall.protocol.coordinator import EpochCoordinator
from outfall.recovery.config import RecoveryConfig
from outfall.recovery.url import recovery_config

PREFIX = "outfall-batch-"

_log = logging.getLogger(__name__)


def make_recovery() -> RecoveryConfig:
    """Make a place for the log, on this host's disk. The protocol runs on it as ever."""
    return recovery_config(tempfile.mkdtemp(prefix=PREFIX))


def remove_recovery(recovery: RecoveryConfig) -> None:
    """Remove the log of a job that ended."""
    shutil.rmtree(recovery.url(), ignore_errors=True)


def end_failed(recovery: RecoveryConfig, step_id: str, make_coordinator: Callable[[], EpochCoordinator]) -> str | None:
    """Take back what a job left that failed, and remove its log. Raises nothing: the job's own error goes on.

    Args:
        recovery: where the log is.
        step_id: the job's step.
        make_coordinator: makes a coordinator of the job's step, on that log.

    Returns:
        Where the log is kept and what for, one sentence; `None` when it is gone.
    """
    try:
        with closing(make_coordinator()) as coordinator:
            withdrawn = coordinator.withdraw()
    except Exception as error:
        _log.warning("a failed job could not be taken back", exc_info=True)
        return (
            f"What the failed job left in the target could not be taken back ({type(error).__name__}); its log is kept:"
            f" `outfall gc {recovery.url()} {step_id} --take-over --yes`, with the sink's options, clears it."
        )
    if withdrawn:
        remove_recovery(recovery)
        return None
    return (
        f"The job is recorded and not wholly published, so its log is kept: the same job with epoch=0 and"
        f" recovery={recovery.url()!r} publishes the rest."
    )
