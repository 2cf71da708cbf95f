"""T1 with servers: a catalogue that goes away at the commit, and replies to it that are lost, for REST and PostgreSQL.

The server does its work in both: only its answers do not come. What the table holds is read past the fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from outfall.errors import TransientError
from outfall.protocol.commit_retry import CommitPolicy
from outfall.protocol.step import EpochOptions
from outfall.testing import LocalDriver
from outfall.testing.tcp_proxy import Direction, NetworkFault, TcpProxy
from outfall.trace_points import listen
from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import Properties
from tests.integration.support.s3 import SeaweedFS
from tests.integration.support.servers import free_port
from tests.integration.support.tables import IcebergLake

pytestmark = pytest.mark.thorough


@dataclass
class CutOff:
    """A table whose catalogue the sink reaches through a proxy, and the test directly."""

    lake: IcebergLake
    proxy: TcpProxy
    through: Mapping[str, str]

    def sink(self) -> Any:
        return self.lake.sink(catalog_options=dict(self.through), retry_deadline="1 second")

    @contextmanager
    def fault(self, step: str, fault: NetworkFault) -> Iterator[list[str]]:
        """Inject a fault when a step is reached for the first time; yields the steps from that one on."""
        seen: list[str] = []
        lift: list[Callable[[], None]] = []

        def note(reached: str) -> None:
            if reached == step and not lift:
                lift.append(self.proxy.inject(fault))
            if lift:
                seen.append(reached)

        stop = listen(note)
        try:
            yield seen
        finally:
            stop()
            for each in lift:
                each()
            self.proxy.drop_connections()


LOST_REPLY = {
    # The response to the one request that is a commit.
    "rest": NetworkFault("cut", "reply", connections=1),
    # The server's word that it has committed; the message ends within it.
    "postgres": NetworkFault("cut", "reply", contains=b"COMMI", connections=1),
}


@pytest.fixture(params=LOST_REPLY)
def cut_off(request: pytest.FixtureRequest, duck: Duck, seaweed: SeaweedFS) -> Iterator[CutOff]:
    catalog: Properties = request.getfixturevalue(f"{request.param}_catalog")
    duck.use(seaweed.s3)
    place = urlsplit(catalog["uri"])
    assert place.hostname
    assert place.port
    with TcpProxy(place.hostname, place.port, listen=free_port()) as proxy:
        here = f"{place.hostname}:{place.port}", f"127.0.0.1:{proxy.port}"
        through = {name: value.replace(*here) if "uri" in name else value for name, value in catalog.items()}
        yield CutOff(IcebergLake(duck, catalog), proxy, through)


def epoch_of(number: int) -> list[list[dict[str, int]]]:
    """Three rows in two tasks."""
    ids = range(3 * number, 3 * number + 3)
    return [[{"id": id} for id in ids[:2]], [{"id": id} for id in ids[2:]]]


def run(sink: Any, recovery: str, epoch: int) -> None:
    """Run an epoch with a driver of its own, which tries a commit for a second."""
    sink.check_schema(pa.schema([("id", pa.int64())]))
    options = EpochOptions(commit=CommitPolicy(deadline=1.0))
    LocalDriver(sink, recovery, options=options).run_epoch(epoch, epoch_of(epoch))


def check(cut_off: CutOff, epochs: int) -> None:
    for ids in cut_off.lake.all_states():
        assert ids == list(range(len(ids)))
        assert len(ids) % 3 == 0
    assert cut_off.lake.ids() == list(range(3 * epochs))


def test_an_epoch_whose_commit_was_not_answered_is_there_once(
    cut_off: CutOff, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The driver finds it, by the record, and goes on: nobody starts it again."""
    recovery = str(tmp_path)
    sink = cut_off.sink()
    run(sink, recovery, 0)
    with cut_off.fault("table: committing", LOST_REPLY[request.node.callspec.params["cut_off"]]) as seen:
        run(sink, recovery, 1)
    assert [step for step in seen if step.startswith("table: ")][:2] == ["table: committing", "table: loading anew"]
    assert seen.count("table: committing") == 1, "it was not found, and committed again"
    run(sink, recovery, 2)
    check(cut_off, 3)


@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.parametrize("step", ["after PREPARED", "table: committing", "table: committed"])
def test_a_catalogue_that_is_gone_at_the_commit_fails_the_query_and_the_next_run_finishes_it(
    cut_off: CutOff, tmp_path: Path, step: str, direction: Direction
) -> None:
    """Nothing goes through in one direction, on all connections, until the query has failed."""
    recovery = str(tmp_path)
    sink = cut_off.sink()
    run(sink, recovery, 0)
    with cut_off.fault(step, NetworkFault("reset", direction)) as seen:
        if step == "table: committed":
            run(sink, recovery, 1)  # clearing up is tried again in the next epoch
        else:
            with pytest.raises(TransientError) as caught:
                run(sink, recovery, 1)
            assert "outfall-secret" not in str(caught.value)
    assert seen[0] == step
    run(sink, recovery, 1)
    run(sink, recovery, 2)
    check(cut_off, 3)
