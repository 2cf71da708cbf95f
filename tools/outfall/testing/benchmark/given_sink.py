"""`format("outfall_benchmark")`: as `format("outfall")`, for a sink that has no name. Needs Spark 4.1 as well."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pyspark import cloudpickle

from outfall.spark.data_source import OutfallDataSource

FORMAT = "outfall_benchmark"
_PICKLED = "pickled"


class GivenSinkSource(OutfallDataSource):
    """Writes to the sink that its options hold."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def make_sink(self, name: str, options: Mapping[str, str]) -> Any:
        return cloudpickle.loads(base64.b64decode(options[_PICKLED]))


def options_of(sink: Any) -> dict[str, str]:
    """Return the options that bring a sink through Spark."""
    pickled: bytes = cloudpickle.dumps(sink)  # type: ignore[no-untyped-call]
    return {"sink": type(sink).__name__, _PICKLED: base64.b64encode(pickled).decode()}
