"""`DelegatingSink`: a sink that delegates to another sink."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

from outfall.capabilities import DeclaresCapabilities, DeclaresKind, SaveMode, WriterInitContext, changed
from outfall.capability_checks import capabilities_of, resolve
from outfall.sinks import Sink


class DelegatingSink(Sink[Any], DeclaresCapabilities, DeclaresKind):
    """Has the capabilities of its delegate, and every public attribute of it that the class does not define.

    Base class of sinks with several write modes, each a class of its own, and of wrappers, which define the methods
    that they change and call those of `self.delegate`. Kind, target and records are those of the delegate: adding or
    removing a wrapper between restarts does not change the stored data.

    Args:
        delegate: The sink that does the work, possibly one written for Bytewax.
    """

    def __init__(self, delegate: Any) -> None:
        self.delegate = delegate

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling look for private names, also on a copy that has no delegate yet.
        if name.startswith("_") or name == "delegate":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        return getattr(self.delegate, name)

    def with_delegate(self, delegate: Any) -> Self:
        """Return a copy that delegates to another sink."""
        return changed(self, delegate=delegate)

    def capabilities(self) -> Collection[type]:
        return capabilities_of(self.delegate) | {DeclaresKind}

    def kind(self) -> str:
        return resolve(self.delegate).kind()

    def bind(self, context: WriterInitContext) -> Self:
        return self.with_delegate(self.delegate.bind(context))

    def in_save_mode(self, mode: SaveMode | None) -> Self:
        return self.with_delegate(resolve(self.delegate).in_save_mode(mode))
