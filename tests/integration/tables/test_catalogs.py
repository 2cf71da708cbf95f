"""What the Iceberg sink stands on, of each catalogue: a commit on what was loaded is a compare-and-swap.

A catalogue that took two commits on one head would make every other test of it worthless.
"""

from __future__ import annotations

import threading
from collections import Counter

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from tests.integration.support.duck import Duck
from tests.integration.support.iceberg_catalogs import Properties, load, new_namespace
from tests.integration.support.s3 import SeaweedFS

ROWS = pa.table({"id": [1, 2]})
RIVALS, ROUNDS = 4, 3


def commit(table: Table, name: str) -> None:
    """Append rows and say so in a property, once, on the head that was loaded."""
    table.metadata.properties["commit.retry.num-retries"] = "0"
    with table.transaction() as transaction:
        transaction.set_properties(winner=name)
        transaction.append(ROWS)


def test_of_several_commits_on_one_head_one_wins_with_its_property_and_its_rows(catalog: Properties) -> None:
    name = f"{new_namespace(catalog)}.t"
    loaded = load(catalog)
    loaded.create_table(name, schema=ROWS.schema)
    for turn in range(ROUNDS):
        tables = [loaded.load_table(name) for _ in range(RIVALS)]
        outcomes: dict[str, str] = {}
        barrier = threading.Barrier(RIVALS)

        def run(
            table: Table, rival: str, outcomes: dict[str, str] = outcomes, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait()
            try:
                commit(table, rival)
            except CommitFailedException:
                outcomes[rival] = "refused"
            else:
                outcomes[rival] = "won"

        threads = [threading.Thread(target=run, args=(table, f"{turn}-{index}")) for index, table in enumerate(tables)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Counter(outcomes.values()) == {"won": 1, "refused": RIVALS - 1}
        found = loaded.load_table(name)
        assert outcomes[found.properties["winner"]] == "won"
        assert found.scan().to_arrow().num_rows == 2 * (turn + 1)


def test_what_was_loaded_before_another_commit_is_refused(catalog: Properties) -> None:
    name = f"{new_namespace(catalog)}.t"
    load(catalog).create_table(name, schema=ROWS.schema)
    stale, fresh = load(catalog).load_table(name), load(catalog).load_table(name)
    commit(fresh, "first")
    with pytest.raises(CommitFailedException):
        commit(stale, "second")
    assert load(catalog).load_table(name).properties["winner"] == "first"


@pytest.mark.thorough
def test_another_reader_finds_the_table_through_the_rest_catalogue(
    rest_catalog: Properties, seaweed: SeaweedFS, duck: Duck
) -> None:
    namespace = new_namespace(rest_catalog)
    table = load(rest_catalog).create_table(f"{namespace}.t", schema=ROWS.schema)
    commit(table, "x")
    duck.attach(seaweed)
    assert duck.query(f"SELECT id FROM catalog.{namespace}.t ORDER BY id") == [(1,), (2,)]
