"""MariaDB, or MySQL: the server that the environment names, or one in a process of our own.

Statements go through the server's own command line client, so that no driver is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from outfall.mysql import MySQLRecoveryConfig
from tests.integration.support.servers import OwnServer, free_port, listens, open_folder, unprivileged
from tests.programs import program

DSN = "OUTFALL_TEST_MARIADB_DSN"
PROGRAMS = "OUTFALL_TEST_MARIADB_PROGRAMS"
"""The variable with the programs that servers of our own are made of, as `Programs.variable`."""
_SECONDS = 120


@dataclass(frozen=True)
class MySQLServer:
    """A server, and who may make databases on it."""

    host: str
    port: int
    user: str
    password: str = ""

    @property
    def client(self) -> MySQLServer:
        """Itself, as `Server.client`."""
        return self

    @cached_property
    def is_mariadb(self) -> bool:
        """Whether it is MariaDB, and not MySQL."""
        return "MariaDB" in self.run("SELECT VERSION()")[0][0]

    def run(self, statements: str, database: str = "", *options: str) -> list[tuple[str, ...]]:
        """Run statements in one session and return the rows of all, as text; NULL is `NULL`.

        Raises:
            RefusedError: The server refused a statement; those before it are done.
        """
        command = [
            program("mariadb"), "--no-defaults", "--protocol=tcp", f"--host={self.host}", f"--port={self.port}",
            f"--user={self.user}", "--batch", "--skip-column-names", "--default-character-set=utf8mb4", *options,
            database,
        ]  # fmt: skip
        done = subprocess.run(
            command, input=statements, capture_output=True, text=True, check=False, timeout=_SECONDS,
            env=os.environ | {"MYSQL_PWD": self.password},
        )  # fmt: skip
        if done.returncode:
            raise RefusedError(done.stderr.strip())
        return [tuple(line.split("\t")) for line in done.stdout.splitlines()]

    @contextmanager
    def settings(self, **settings: str) -> Iterator[None]:
        """Give settings of the server other values within a block, as SQL."""
        shown = self.run(f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in settings)}")[0]
        before = {name: value if value.isdigit() else f"'{value}'" for name, value in zip(settings, shown, strict=True)}
        self._set(settings)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, settings: dict[str, str]) -> None:
        for name, value in settings.items():
            self.run(f"SET GLOBAL {name} = {value}")

    def has_lock_wait(self) -> bool:
        """Whether a transaction waits for a lock. The server renews what it shows after 0.1 s without a look only."""
        time.sleep(0.15)
        return bool(self.run("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))

    def location(self, database: str, port: int = 0, **options: Any) -> MySQLRecoveryConfig:
        """Return a recovery location in a database, also through another port of this machine."""
        user, place = quote(self.user, safe=""), f"127.0.0.1:{port}" if port else f"{self.host}:{self.port}"
        # A location contains no password.
        os.environ["OUTFALL_TEST_PASSWORD"] = self.password
        url = f"mysql://{user}@{place}/{database}?password=env:OUTFALL_TEST_PASSWORD&tls=prefer"
        return MySQLRecoveryConfig(url, **options)

    def new_database(self, options: str = "CHARACTER SET utf8mb4") -> str:
        """Make an empty database and return its name."""
        name = f"outfall_{uuid.uuid4().hex[:16]}"
        self.run(f"CREATE DATABASE {name} {options}")
        return name


class RefusedError(Exception):
    """A statement failed; the text is the client's line, with the number of the error."""


@dataclass(frozen=True)
class Programs:
    """The commands that make a server's data and that serve it, up to their options."""

    make: tuple[str, ...]
    serve: tuple[str, ...]

    def variable(self) -> dict[str, str]:
        """Return the variable that leads the integration tests to them."""
        return {PROGRAMS: json.dumps(asdict(self))}


def found_programs() -> Programs:
    """Return the programs that the environment names, or those of Debian's MariaDB."""
    if given := os.environ.get(PROGRAMS):
        return Programs(**{name: tuple(words) for name, words in json.loads(given).items()})
    method = "--auth-root-authentication-method=normal"
    return Programs(
        make=(program("mariadb-install-db"), "--no-defaults", method, "--skip-test-db"),
        serve=(program("mariadbd"), "--no-defaults"),
    )


class Server(OwnServer):
    """A server of our own, that may be killed and started again on its data and port."""

    def __init__(self, folder: Path, programs: Programs | None = None, /, **settings: str) -> None:
        """Make its data; start nothing yet. Settings are those of the server, with underscores."""
        programs = programs or found_programs()
        data, temporary = folder / "data", folder / "tmp"
        # A server that starts removes the temporary tables of others in the same directory.
        temporary.mkdir()
        data.mkdir()
        user = unprivileged(folder, data, temporary)
        made = [*programs.make, f"--datadir={data}", f"--tmpdir={temporary}"]
        done = subprocess.run(made, capture_output=True, text=True, check=False, cwd="/", **user)
        assert done.returncode == 0, done.stderr[-2000:]
        self.client = MySQLServer("127.0.0.1", free_port(), "root")
        given = {"innodb_buffer_pool_size": "64M", "local_infile": "ON"} | settings
        command = [
            *programs.serve, f"--datadir={data}", f"--tmpdir={temporary}",
            f"--port={self.client.port}", "--bind-address=127.0.0.1", f"--socket={folder / 'socket'}",
            f"--pid-file={folder / 'pid'}",
            *(f"--{name.replace('_', '-')}={value}" for name, value in given.items()),
        ]  # fmt: skip
        super().__init__(command, folder / "log", self._answers, user=user)

    def _answers(self) -> bool:
        if not listens(self.client.port):
            return False
        try:
            return self.client.run("SELECT 1") == [("1",)]
        except RefusedError:
            return False


@contextmanager
def own_server(programs: Programs | None = None, /, **settings: str) -> Iterator[Server]:
    """Run a server of our own, of the programs that are given or found."""
    with open_folder() as folder:
        server = Server(folder, programs, **settings)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@contextmanager
def mysql_server() -> Iterator[MySQLServer]:
    """Find the server that the environment names, or run one."""
    if given := os.environ.get(DSN):
        parts = urlsplit(given)
        yield MySQLServer(
            parts.hostname or "127.0.0.1", parts.port or 3306, unquote(parts.username or "root"),
            unquote(parts.password or ""),
        )  # fmt: skip
        return
    with own_server() as server:
        yield server.client
