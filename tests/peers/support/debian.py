"""Servers of other releases of Debian: apt fetches a package and all that it needs into a cache, and installs nothing.

They run on the C library that was fetched with them. `python -m tests.peers.support.debian` fetches all, so that a
session without the network ends early.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.support.mariadb import DSN, Programs, own_server
from tests.integration.support.postgres import open_copy
from tests.integration.support.servers import open_folder
from tests.peers.support.jars import CACHE, cache, keep

PACKAGES = {"mysql-9.7": ("sid", "mysql-server-core", "9.7.")}
"""By peer, the release of Debian, its package, and how the version begins: sid has one version at a time."""

_MIRROR = "http://deb.debian.org/debian"
_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LIBRARIES = "lib/x86_64-linux-gnu"
_MINUTES = 10


@contextmanager
def mysql_programs() -> Iterator[Programs]:
    """Yield MySQL's own server, which everybody can start."""
    with open_folder() as folder:
        usr = open_copy(_installed("mysql-9.7"), folder / "mysql")
        libraries = usr / _LIBRARIES
        server = (
            str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(usr / "sbin" / "mysqld"),
            "--no-defaults", f"--basedir={usr}", f"--plugin-dir={usr / 'lib' / 'mysql' / 'plugin'}",
            # Debian's package makes the folder of the default.
            "--secure-file-priv=",
        )  # fmt: skip
        yield Programs(make=(*server, "--initialize-insecure"), serve=(*server, "--mysqlx=OFF"))


@contextmanager
def mysql_peer() -> Iterator[dict[str, str]]:
    """Run MySQL; yields the variables that the integration tests read, which also start servers of their own."""
    with mysql_programs() as programs, own_server(programs) as server:
        yield {DSN: f"mysql://root@127.0.0.1:{server.client.port}"} | programs.variable()


def _installed(peer: str) -> Path:
    folder = cache() / f"debian-{peer}"
    if not folder.exists():
        _fetch(*PACKAGES[peer], folder)
    return folder


def _fetch(release: str, package: str, version: str, folder: Path) -> None:
    """Unpack beside the folder and rename, since two processes may want it and each may be killed."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as name:
        scratch = Path(name)
        sources, status = scratch / "sources.list", scratch / "status"
        sources.write_text(f"deb [signed-by={_KEYS}] {_MIRROR} {release} main\n")
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
        _run(*apt, "--yes", "--no-install-recommends", "--download-only", "install", package)
        archives = sorted((scratch / "cache" / "archives").glob("*.deb"))
        if not any(each.name.startswith(f"{package}_{version}") for each in archives):
            found = ", ".join(each.name for each in archives if each.name.startswith(f"{package}_"))
            pytest.fail(f"Debian's {release} has {found}. What to do: change PACKAGES and the names", pytrace=False)
        for archive in archives:
            _run("dpkg-deb", "--extract", str(archive), str(scratch / "root"))
        # What else there is, perl and systemd among it, no server needs.
        for each in ("sbin", "lib/mysql", _LIBRARIES, "share/mysql"):
            shutil.copytree(scratch / "root" / "usr" / each, scratch / "usr" / each, symlinks=True)
        keep(scratch / "usr", folder)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MINUTES * 60)
    if done.returncode:
        pytest.fail(
            f"{command[0]} ended with {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}\nWhat to do: use"
            f" Debian on x86-64, check the network, or set {CACHE} to a folder that has it",
            pytrace=False,
        )


def main() -> int:
    """Fetch all."""
    try:
        for peer in PACKAGES:
            print(f"{peer}: {_installed(peer)}", flush=True)
    except (pytest.fail.Exception, pytest.skip.Exception) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
