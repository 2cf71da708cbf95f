"""Changes of customers → Spark → MySQL or MariaDB, killed once in between: the final state is that of one run.

    pip install 'outfall[spark,mysql]'; sudo apt-get install mariadb-server
    python examples/changes_to_mysql.py                             # starts a MariaDB of its own
    python examples/changes_to_mysql.py mysql://app@localhost/shop  # uses yours, and makes the table customers in it

The job is in `start`. The rest creates changes, kills the job once, and compares the table with the changes.
"""

from __future__ import annotations

import getpass
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pymysql
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from outfall.mysql import MySQLSink
from outfall.spark import write_stream

EPOCHS, ROWS, CUSTOMERS = 6, 500, 300
COLUMNS = "id int, position bigint, op string, name string"
Customers = dict[int, tuple[int, str]]
"""Position and name by id."""


def start(spark: SparkSession, dsn: str, directory: Path) -> StreamingQuery:
    """Apply the changes: of several changes of a customer, the one with the greatest position wins."""
    changes = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(directory / "changes"))
    sink = MySQLSink(
        dsn, "customers", write_mode="changes", key_columns="id", operation_column="op", sequence_column="position"
    )
    return write_stream(changes, sink, checkpoint=directory / "checkpoint").trigger(availableNow=True).start()


def main() -> int:
    if os.environ.get("EXAMPLE_JOB"):
        return job(sys.argv[1], Path(sys.argv[2]))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        expected = create(directory / "changes")
        own = None if sys.argv[1:] else server(directory)
        dsn = sys.argv[1] if sys.argv[1:] else "mysql://root@127.0.0.1:13306/shop"
        try:
            with connected(dsn) as connection, connection.cursor() as cursor:
                cursor.execute("CREATE TABLE customers (id INT PRIMARY KEY, position BIGINT NOT NULL, name TEXT)")
            for kill in (True, False):
                child = subprocess.Popen(
                    [sys.executable, __file__, dsn, name], env=os.environ | {"EXAMPLE_JOB": "1"}, start_new_session=True
                )
                if kill:
                    while not customers(dsn) and child.poll() is None:
                        time.sleep(0.05)
                    os.killpg(child.pid, signal.SIGKILL)
                    print("Killed the job.")
                child.wait()
            return 0 if check(dsn, expected) else 1
        finally:
            if own is not None:
                own.kill()
                own.wait()


def job(dsn: str, directory: Path) -> int:
    """Run the stream to the end of the changes."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    start(spark, dsn, directory).awaitTermination()
    return 0


def create(directory: Path) -> Customers:
    """Write one file of changes per epoch, in any order, and return what the table must contain at the end."""
    directory.mkdir()
    chance = random.Random(1)
    state: Customers = {}
    changes = []
    for position in range(EPOCHS * ROWS):
        customer, name = chance.randrange(CUSTOMERS), f"name {chance.random()}"
        operation = "d" if chance.random() < 0.1 else "u" if customer in state else "c"
        changes.append({"id": customer, "position": position, "op": operation, "name": name})
        state.pop(customer, None)
        if operation != "d":
            state[customer] = position, name
    # Late changes come up to an epoch after newer ones.
    changes.sort(key=lambda change: int(str(change["position"])) + chance.randrange(ROWS))
    for epoch in range(EPOCHS):
        path = directory / f"{epoch}.json"
        path.write_text("\n".join(map(json.dumps, changes[epoch * ROWS : (epoch + 1) * ROWS])))
        os.utime(path, (epoch + 1, epoch + 1))  # Spark reads the oldest file first
    return state


def server(directory: Path) -> subprocess.Popen[bytes]:
    """Start a MariaDB with a database `shop`."""
    if shutil.which("mariadbd") is None:
        sys.exit("Install mariadb-server, or pass the URL of a database.")
    place = [f"--datadir={directory / 'data'}", f"--user={getpass.getuser()}"]
    method = "--auth-root-authentication-method=normal"
    subprocess.run(["mariadb-install-db", "--no-defaults", method, *place], check=True, stdout=subprocess.DEVNULL)
    address = ["--port=13306", "--bind-address=127.0.0.1", f"--socket={directory / 'socket'}", "--local-infile=ON"]
    own = subprocess.Popen(["mariadbd", "--no-defaults", *place, *address], stderr=subprocess.DEVNULL)
    while True:
        try:
            with pymysql.connect(host="127.0.0.1", port=13306, user="root") as connection:
                connection.cursor().execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
            return own
        except pymysql.OperationalError:
            time.sleep(0.05)


def connected(dsn: str) -> pymysql.Connection:
    """Connect without Outfall."""
    url = urlsplit(dsn)
    user, password = unquote(url.username or ""), unquote(url.password or "")
    return pymysql.connect(
        host=url.hostname, port=url.port or 3306, user=user, password=password, database=url.path.strip("/")
    )


def customers(dsn: str) -> Customers:
    """Return what is in the table."""
    with connected(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, position, name FROM customers")
        return {customer: (position, name) for customer, position, name in cursor.fetchall()}


def check(dsn: str, expected: Customers) -> bool:
    """Compare what an independent client reads with the changes."""
    found = customers(dsn)
    wrong = sum(found.get(customer) != row for customer, row in expected.items())
    print(f"customers expected {len(expected)}, found {len(found)}, wrong or missing {wrong}")
    return found == expected


if __name__ == "__main__":
    sys.exit(main())
