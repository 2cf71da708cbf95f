"""What the constructors of all sinks on the asynchronous base have in common: `dead_letter=`."""

from __future__ import annotations

from abc import ABCMeta
from inspect import Parameter, Signature, signature
from typing import Any


class AsyncSinkMeta(ABCMeta):
    """Type of `AsyncSink` and of what derives from it: takes `dead_letter` off the arguments of the constructor.

    A shim's own `__init__` never sees it. Where it is a sink, what is constructed is a
    `outfall.wrappers.DeadLetteringSink` of the two; with `None` it is the shim alone. Copies and pickles are
    made without this, as of any object.
    """

    def __call__(cls, *args: Any, dead_letter: Any = None, **options: Any) -> Any:
        """Construct a sink.

        Raises:
            ConfigurationError: an option is wrong.
            CapabilityError: `dead_letter` cannot take what this sink refuses.
        """
        sink = super().__call__(*args, **options)
        if dead_letter is None:
            return sink
        # Composites know the epoch protocol, and this package does not.
        from outfall.wrappers import DeadLetteringSink

        return DeadLetteringSink(sink, dead_letter)

    @property
    def __signature__(cls) -> Signature:
        """The constructor's arguments, for `help()`: those of the shim, and `dead_letter`."""
        own = signature(cls.__init__)  # type: ignore[misc]
        parameters = list(own.parameters.values())[1:]
        place = len(parameters) - any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
        parameters.insert(place, Parameter("dead_letter", Parameter.KEYWORD_ONLY, default=None, annotation=Any))
        return own.replace(parameters=parameters)
