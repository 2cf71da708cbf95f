"""The jars of the peers: Maven fetches those of a profile of `tests/peers/pom.xml` once, into a cache of the user.

`python -m tests.peers.support.jars` fetches all, so that a session without Maven or the network ends before its tests.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.programs import PACKAGES, installed, program

POM = Path(__file__).parents[1] / "pom.xml"
CACHE = "OUTFALL_PEERS_CACHE"
_MINUTES = 15
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def cache() -> Path:
    """Return the folder of what peers are started from; it outlives the tests."""
    given = os.environ.get(CACHE)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(given or Path(caches, "outfall-peers"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def profiles() -> dict[str, ElementTree.Element]:
    """Return the profiles of the POM by their ids."""
    found = ElementTree.parse(POM).iterfind("{*}profiles/{*}profile")
    return {str(profile.findtext("{*}id")): profile for profile in found}


def jars(profile: str) -> Path:
    """Return the folder with the jars of a profile, all of them; a changed profile gets another folder."""
    content = ElementTree.tostring(profiles()[profile])
    folder = cache() / f"{profile}-{hashlib.sha256(content).hexdigest()[:12]}"
    if not folder.exists():
        _fetch(profile, folder)
    return folder


def class_path(*profiles: str, extra: tuple[Path, ...] = ()) -> str:
    """Return a class path for `java -cp`."""
    return os.pathsep.join([*(f"{jars(profile)}/*" for profile in profiles), *map(str, extra)])


def java() -> str:
    """Return the Java that Spark uses."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    if found is None:
        pytest.fail(
            "no java on the PATH or in JAVA_HOME. What to do: install a JDK, version 17 or later", pytrace=False
        )
    return found


def compiling_java() -> str:
    """Return the Java that Spark uses, which can be given source; skip the test without its compiler."""
    if not Path(java()).resolve().with_name("javac").exists():
        program("javac")
    return java()


def _fetch(profile: str, folder: Path) -> None:
    """Fetch beside the folder and rename, since two processes may want it and each may be killed."""
    maven = program("mvn")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as scratch:
        fetched = Path(scratch) / "jars"
        # Strict: a jar whose checksum is not Maven's is an error.
        command = [
            maven, "--batch-mode", "--strict-checksums", "--quiet", "--file", str(POM), "--activate-profiles", profile,
            _PLUGIN, "-DincludeScope=runtime", f"-DoutputDirectory={fetched}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MINUTES * 60)
        if done.returncode:
            pytest.fail(
                f"Maven could not fetch the jars of {profile}:\n{done.stdout[-2000:]}{done.stderr[-500:]}\nWhat to do:"
                f" check the network, or set {CACHE} to a folder that has them",
                pytrace=False,
            )
        keep(fetched, folder)


def keep(fetched: Path, folder: Path) -> None:
    """Move what was fetched to its place in the cache, unless another process was faster."""
    try:
        fetched.rename(folder)
    except OSError:
        if not folder.exists():
            raise


def fetch_all(names: Iterable[str], fetched: Callable[[str], Path]) -> int:
    """Fetch what peers are started from, and say where it is; return the exit code of a command."""
    try:
        for name in names:
            print(f"{name}: {fetched(name)}", flush=True)
    except (pytest.fail.Exception, pytest.skip.Exception) as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def main() -> int:
    """Fetch all jars."""
    code = fetch_all(profiles(), jars)
    if code and not installed("mvn"):
        print(f"What to do: sudo apt-get install {PACKAGES['mvn']}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
