"""`DelegatingSink`: a sink that delegates to another sink."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, Self

from outfall.capabilities import DeclaresCapabilities, DeclaresKind, SaveMode, WriterInitContext
from outfall.capability_checks import capabilities_of, resolve
from outfall.sinks import Sink


class DelegatingSink(Sink[Any], DeclaresCapabilities, DeclaresKind):
    """Has the capabilities of its worker, and every public attribute of it that the class does not define.

    Base class of sinks with several write modes, each a class of its own, and of wrappers, which define the methods
    that they change and call those of `self.worker`. Kind, target and records are those of the worker: adding or
    removing a wrapper between restarts does not change the stored data.

    Args:
        worker: The sink that does the work, possibly one written for Bytewax.
    """

    def __init__(self, worker: Any) -> None:
        self.worker = worker

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling look for private names, also on a copy that has no worker yet.
        if name.startswith("_") or name == "worker":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self.worker, name)

    def with_worker(self, worker: Any) -> Self:
        """Return a copy that delegates to another sink."""
        changed = copy.copy(self)
        changed.worker = worker
        return changed

    def capabilities(self) -> Collection[type]:
        return capabilities_of(self.worker) | {DeclaresKind}

    def kind(self) -> str:
        return resolve(self.worker).kind()

    def bind(self, context: WriterInitContext) -> Self:
        return self.with_worker(self.worker.bind(context))

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        return self.with_worker(resolve(self.worker).in_save_mode(mode))
