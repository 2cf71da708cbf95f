"""librdkafka's own mock cluster, which lies inside the package of the client: for brokers that go away and errors.

It has no admin API and compacts nothing; its topics are made by whoever asks for them.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path

import confluent_kafka  # noqa: F401 - loads the library

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
_PRODUCER = 0


def _library() -> ctypes.CDLL:
    """The very library that the client has loaded."""
    mapped = Path("/proc/self/maps").read_text().split()
    return ctypes.CDLL(next(path for path in mapped if "/librdkafka" in path))


class MockCluster:
    """Serves until it is closed."""

    def __init__(self, brokers: int = 3) -> None:
        """Start so many brokers."""
        self._c = _library()
        for name, result, arguments in (
            ("rd_kafka_conf_new", ctypes.c_void_p, []),
            ("rd_kafka_new", ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]),
            ("rd_kafka_mock_cluster_new", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
            ("rd_kafka_mock_cluster_bootstraps", ctypes.c_char_p, [ctypes.c_void_p]),
            ("rd_kafka_mock_cluster_destroy", None, [ctypes.c_void_p]),
            ("rd_kafka_destroy", None, [ctypes.c_void_p]),
            (
                "rd_kafka_mock_topic_create",
                ctypes.c_int,
                [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
            ),
            ("rd_kafka_mock_broker_set_down", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
            ("rd_kafka_mock_broker_set_up", ctypes.c_int, [ctypes.c_void_p, ctypes.c_int32]),
            (
                "rd_kafka_mock_partition_set_leader",
                ctypes.c_int,
                [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32],
            ),
            (
                "rd_kafka_mock_push_request_errors_array",
                None,
                [ctypes.c_void_p, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)],
            ),
        ):
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments
        error = ctypes.create_string_buffer(512)
        self._client = self._c.rd_kafka_new(_PRODUCER, self._c.rd_kafka_conf_new(), error, len(error))
        assert self._client, error.value
        self._cluster = self._c.rd_kafka_mock_cluster_new(self._client, brokers)
        assert self._cluster
        self.address = self._c.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def make(self, topic: str) -> None:
        """Make a topic of one partition, on three brokers, led by the first."""
        assert not self._c.rd_kafka_mock_topic_create(self._cluster, topic.encode(), 1, 3)
        self.lead(topic, 1)

    def lead(self, topic: str, broker: int) -> None:
        assert not self._c.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), 0, broker)

    def take_down(self, broker: int) -> None:
        assert not self._c.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def bring_up(self, broker: int) -> None:
        assert not self._c.rd_kafka_mock_broker_set_up(self._cluster, broker)

    def answer(self, request: int, errors: Sequence[int]) -> None:
        """Answer the next requests of a kind with these errors."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._c.rd_kafka_mock_push_request_errors_array(self._cluster, request, len(errors), array)

    def close(self) -> None:
        self._c.rd_kafka_mock_cluster_destroy(self._cluster)
        # The library waits a second for its own thread, which nothing else has to wait for.
        threading.Thread(target=self._c.rd_kafka_destroy, args=[self._client]).start()
