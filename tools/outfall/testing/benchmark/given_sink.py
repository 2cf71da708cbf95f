"""`format("outfall_benchmark")`: like `format("outfall")`, for a sink without a name. Requires Spark 4.1."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import Any

from outfall.spark.data_source import OutfallDataSource

FORMAT = "outfall_benchmark"
_PICKLED = "pickled"


class GivenSinkSource(OutfallDataSource):
    """Writes to the sink in its options."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def make_sink(self, name: str, options: Mapping[str, str]) -> Any:
        return pickle.loads(base64.b64decode(options[_PICKLED]))  # noqa: S301 - our own bytes


def options_of(sink: Any) -> dict[str, str]:
    """Return options that pass a sink through Spark."""
    # Imported here: without pyspark, outfall.spark raises an error that names the extra.
    from pyspark import cloudpickle

    pickled: bytes = cloudpickle.dumps(sink)  # type: ignore[no-untyped-call]
    return {"sink": type(sink).__name__, _PICKLED: base64.b64encode(pickled).decode()}
