"""Facts about a sink for the tables of the documentation that its code does not declare.

Each package with an entry point in `outfall.sinks` has a module `facts` with one `SinkFacts` called `FACTS`. Nothing
else imports these modules: `python -m tests.generated` writes the tables from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SinkFacts:
    """The sinks of one package, as objects under the options that change what they can do.

    Guarantee, save modes, output modes, write modes, dead letters and APIs are read from the objects.
    """

    title: str
    """The destination's name, such as `PostgreSQL`."""
    destination: str
    """What the rows become, such as `rows of a PostgreSQL table`, in Markdown."""
    sinks: Mapping[str, Any] = field(default_factory=dict)
    """Sinks by the words that follow what differs under their options, such as "with `parts=N`", in Markdown. The first
    one has default options and no words. Empty for sinks around other sinks, which have what those have."""
