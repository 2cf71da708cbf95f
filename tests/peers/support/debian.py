"""Programs of other releases of Debian: apt fetches a package and all that it needs into a cache, and installs nothing.

They run on the C library that was fetched with them. `python -m tests.peers.support.debian` fetches all, so that a
session without the network ends early.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.support.mysql import DSN, Programs, Server, own_server
from tests.integration.support.postgres import open_copy
from tests.integration.support.servers import open_folder
from tests.peers.support.jars import CACHE, cache, fetch_all, keep


@dataclass(frozen=True)
class Package:
    """A package of a release of Debian, how its version begins, and the folders below /usr that its programs need.

    A release has one version at a time. What else there is, perl and systemd among it, no program needs.
    """

    release: str
    name: str
    version: str
    folders: tuple[str, ...]


_LIBRARIES = "lib/x86_64-linux-gnu"
PACKAGES = {
    "mysql-9.7": Package("sid", "mysql-server-core", "9.7.", ("sbin", "lib/mysql", _LIBRARIES, "share/mysql")),
    "mariadb-11.8": Package("trixie", "mariadb-server-core", "1%3a11.8.", ("sbin", _LIBRARIES, "share/mariadb")),
    "redis-8.0": Package("trixie", "redis-server", "5%3a8.0.", ("bin", _LIBRARIES)),
    "valkey-8.1": Package("trixie", "valkey-server", "8.1.", ("bin", _LIBRARIES)),
    "java-21": Package("trixie", "openjdk-21-jdk-headless", "21.", ("lib/jvm/java-21-openjdk-amd64", _LIBRARIES)),
}
"""By peer."""

_MIRROR = "http://deb.debian.org/debian"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MINUTES = 10
_SYSTEM_TABLES = (
    "mariadb_system_tables", "mariadb_performance_tables", "mariadb_system_tables_data",
    "maria_add_gis_sp_bootstrap", "mariadb_sys_schema",
)  # fmt: skip


@contextmanager
def mysql_programs() -> Iterator[Programs]:
    """Yield MySQL's own server, which everybody can start."""
    with unpacked("mysql-9.7") as usr:
        server = (
            *_mysql(usr, "mysqld"), f"--plugin-dir={usr / 'lib' / 'mysql' / 'plugin'}",
            # Debian's package makes the folder of the default.
            "--secure-file-priv=",
        )  # fmt: skip
        yield Programs(make=(*server, "--initialize-insecure"), serve=(*server, "--mysqlx=OFF"))


@contextmanager
def mariadb_programs() -> Iterator[Programs]:
    """Yield the newest MariaDB of long-term support, which everybody can start."""
    with unpacked("mariadb-11.8") as usr:
        share = usr / "share" / "mariadb"
        server = (
            *_mysql(usr, "mariadbd"),
            f"--lc-messages-dir={share}",
            f"--character-sets-dir={share}/charsets",
        )
        # What mariadb-install-db does, whose own programs do not find the libraries.
        begin = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;"
        files = " ".join(f"{share}/{name}.sql" for name in _SYSTEM_TABLES)
        script = f'(echo "{begin}"; cat {files}) | "$@" --bootstrap'
        yield Programs(make=("sh", "-c", script, "sh", *server), serve=server)


def java_21() -> tuple[str, ...]:
    """Return the command that runs Java 21, for what the Java of Spark is too old for."""
    usr = _installed("java-21")
    libraries, home = usr / _LIBRARIES, usr / "lib" / "jvm" / "java-21-openjdk-amd64"
    path = os.pathsep.join(map(str, (home / "lib", home / "lib" / "server", libraries)))
    return str(libraries / "ld-linux-x86-64.so.2"), "--library-path", path, str(home / "bin" / "java")


def _mysql(usr: Path, name: str) -> tuple[str, ...]:
    return *on_its_libraries(usr, f"sbin/{name}"), "--no-defaults", f"--basedir={usr}"


def on_its_libraries(usr: Path, name: str) -> tuple[str, ...]:
    """Return the command that runs a program with the C library that was fetched with it."""
    libraries = usr / _LIBRARIES
    return str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(usr / name)


@contextmanager
def made_once(programs: Programs) -> Iterator[Programs]:
    """Yield programs whose servers get copies of one server's data, since MySQL takes long to make them."""
    with open_folder() as folder:
        Server(folder, programs)
        data = folder / "data"
        # The identity of a server, which it makes again.
        (data / "auto.cnf").unlink(missing_ok=True)
        copy = f'for given; do case "$given" in --datadir=*) cp -R {data}/. "${{given#--datadir=}}";; esac; done'
        yield Programs(make=("sh", "-c", copy, "sh"), serve=programs.serve)


@contextmanager
def mysql_peer() -> Iterator[dict[str, str]]:
    """Run MySQL; yields the variables that the integration tests read, which also start servers of their own."""
    with mysql_programs() as programs, own_server(programs) as server:
        yield {DSN: f"mysql://root@127.0.0.1:{server.client.port}"} | programs.variable()


@contextmanager
def mariadb_peer() -> Iterator[dict[str, str]]:
    """Run MariaDB; yields the variables that the integration tests read, which also start servers of their own."""
    with mariadb_programs() as programs, own_server(programs) as server:
        yield {DSN: f"mysql://root@127.0.0.1:{server.client.port}"} | programs.variable()


@contextmanager
def unpacked(peer: str) -> Iterator[Path]:
    """Yield the folder of a package, which everybody can enter."""
    with open_folder() as folder:
        yield open_copy(_installed(peer), folder / "usr")


def _installed(peer: str) -> Path:
    folder = cache() / f"debian-{peer}"
    if not folder.exists():
        _fetch(PACKAGES[peer], folder)
    return folder


def _fetch(package: Package, folder: Path) -> None:
    """Unpack beside the folder and rename, since two processes may want it and each may be killed."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
        scratch = Path(name)
        sources, status = scratch / "sources.list", scratch / "status"
        sources.write_text(f"deb [signed-by={_KEYS}] {_MIRROR} {package.release} main\n")
        # Nothing counts as installed, so that the C library comes with it.
        status.touch()
        for each in ("state/lists", "cache/archives"):
            (scratch / each / "partial").mkdir(parents=True)
        apt = (
            "apt-get", "-qq", "-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=-",
            "-o", f"Dir::State={scratch / 'state'}", "-o", f"Dir::State::status={status}",
            "-o", f"Dir::Cache={scratch / 'cache'}", "-o", "Debug::NoLocking=1",
            # Its own user may not write into the scratch folder.
            "-o", "APT::Sandbox::User=root",
        )  # fmt: skip
        _run(*apt, "update")
        _run(*apt, "--yes", "--no-install-recommends", "--download-only", "install", package.name)
        archives = sorted((scratch / "cache" / "archives").glob("*.deb"))
        if not any(each.name.startswith(f"{package.name}_{package.version}") for each in archives):
            found = ", ".join(each.name for each in archives if each.name.startswith(f"{package.name}_"))
            pytest.fail(
                f"Debian's {package.release} has {found}. What to do: change PACKAGES and the names", pytrace=False
            )
        for archive in archives:
            _run("dpkg-deb", "--extract", str(archive), str(scratch / "root"))
        root, usr = scratch / "root", scratch / "usr"
        for each in package.folders:
            shutil.copytree(root / "usr" / each, usr / each, symlinks=True)
        for link in [path for path in usr.rglob("*") if path.is_symlink()]:
            # Java's settings are below /etc. What an installation would make there is missing.
            settings = root / os.readlink(link).lstrip("/")
            if settings.is_relative_to(root / "etc") and settings.exists():
                link.unlink()
                (shutil.copytree if settings.is_dir() else shutil.copy2)(settings, link)
        keep(usr, folder)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MINUTES * 60)
    if done.returncode:
        pytest.fail(
            f"{command[0]} ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}\nWhat to do: use"
            f" Debian on x86-64, check the network, or set {CACHE} to a folder that has it",
            pytrace=False,
        )


if __name__ == "__main__":
    sys.exit(fetch_all(PACKAGES, _installed))
