"""Names: of indices, which a row or an option may choose and an alias may stand for, and of fields."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote

from outfall.errors import TargetError
from outfall.opensearch.client import OpenSearchClient, OpenSearchRecords, check

_LONGEST = 255
_RESERVED = re.compile(r'[\\/*?"<>| ,#:]|^[-_+]|^\.{1,2}$')
"""Characters that no index has, among them wildcards and date math, and names that stand for several indices."""

_METADATA = {
    "_data_stream_timestamp", "_field_names", "_id", "_ignored", "_ignored_source", "_index", "_nested_path",
    "_primary_term", "_routing", "_seq_no", "_source", "_version",
}  # fmt: skip
"""Fields of the server: it refuses a document with one, and after a `_primary_term` all documents of the index."""


def is_field(name: str) -> bool:
    """Whether a document may have a field of this name. Dots divide it into objects.

    OpenSearch 2.19 and Elasticsearch 9.1 were asked: a name that either of them refuses is refused.
    """
    return name not in _METADATA and all(map(str.strip, name.rstrip(".").split(".")))


def refusal(name: str) -> str | None:
    """Return why no document may go to this name, whatever the cluster has; `None` if it may.

    The rules are those of "Create index" in OpenSearch's API reference, and of date math: the cluster takes
    `<outfall-records>` for `outfall-records`.
    """
    if name == OpenSearchRecords.INDEX:
        return f"{name} contains Outfall's own records"
    if not name or _RESERVED.search(name) or name != name.lower() or len(name.encode()) > _LONGEST:
        return f"{name[:_LONGEST]!r} is not the lower-case name of one index, alias or data stream"
    return None


def indices_of(client: OpenSearchClient, name: str) -> dict[str, dict[str, str]]:
    """Return the indices that a name stands for, with their settings; none if the name is missing.

    Raises `TransientError` or `TargetError`.
    """
    response = client.send("GET", f"/{quote(name)}/_settings?flat_settings=true")
    if response.status == 404:
        return {}
    found = check(response, f"reading the settings of the index {name}").body
    return {index: each.get("settings", {}) for index, each in found.items() if isinstance(each, dict)}


def misleading(name: str, indices: Sequence[str]) -> str | None:
    """Return why rows with keys cannot go to a name that stands for these indices."""
    if OpenSearchRecords.INDEX in indices:
        return f"{name} is an alias of {OpenSearchRecords.INDEX}, which contains Outfall's own records"
    if len(indices) > 1:
        shown = ", ".join(sorted(indices)[:3])
        return f"{name} stands for {len(indices)} indices ({shown}, …), each of which may have a document with the id"
    return None


class IndexNames:
    """The names that the rows of a task go to, each with its index. Threads share it."""

    def __init__(self, client: OpenSearchClient) -> None:
        """Ask the cluster when a name is used first."""
        self._client = client
        self._known: dict[str, str | None] = {}
        """`None` as long as no row shows it: the write makes the index, or its settings may not be read."""

    def refusal(self, name: str) -> str | None:
        """Return why no row may go to a name. Raises `TransientError`."""
        if name not in self._known:
            try:
                found = list(indices_of(self._client, name))
            except TargetError:  # Writing may be allowed, and reading the settings not.
                found = []
            if reason := misleading(name, found):
                return reason
            self._known[name] = found[0] if found else None
        return None

    def went_astray(self, name: str, index: str) -> str | None:
        """Return why a row that went to `index` is in the wrong place; `None` if it is not."""
        if (known := self._known.get(name)) is None:
            self._known[name] = known = index
        return None if known == index else f"rows for {name} went to {known} before, and go to {index} now"
