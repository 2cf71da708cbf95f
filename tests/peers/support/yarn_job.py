"""Flights that a job on YARN writes somewhere: `flight_driver`, submitted as users submit theirs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import psycopg

from tests.integration.conftest import spark_environment
from tests.integration.support import flight_driver
from tests.integration.support.flights import flights, write_input
from tests.integration.support.hunt import REFUSED
from tests.integration.support.reading import visible
from tests.integration.support.waiting import until
from tests.peers.support import reaper
from tests.peers.support.yarn import SPARK_HOME, USER, Host, Yarn

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds for what comes after the start of another driver, which takes a minute on a busy machine."""
SEED = int(os.environ.get("OUTFALL_TEST_SEED", "20261124"))
SETTINGS = {
    "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
    "spark.yarn.maxAppAttempts": "20",
    "spark.ui.enabled": "false",
    "spark.executor.instances": "2",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.yarn.am.memory": "512m",
    # A lost executor is noticed within seconds.
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
    # None of the kills is the job's own fault.
    "spark.executor.maxNumFailures": "1000",
}
PASSED_ON = ("PYSPARK_PYTHON", "SPARK_LOCAL_IP", "JDK_JAVA_OPTIONS", "OUTFALL_TEST_CRASH_ORDER")
"""Variables that containers need: they inherit nothing else of the client's environment but `PYTHONPATH`."""


def submit(
    yarn: Yarn,
    job: Sequence[str],
    *,
    deploy: str,
    name: str,
    settings: dict[str, str],
    environment: dict[str, str],
    log: Path,
    options: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Run spark-submit. In cluster mode it ends with the application, else it is the driver."""
    command = [f"{SPARK_HOME}/bin/spark-submit", "--master", "yarn", "--deploy-mode", deploy, "--name", name, *options]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    client = yarn.folder / "client"
    client.mkdir(exist_ok=True)
    whose = {"HADOOP_CONF_DIR": str(yarn.conf), "HADOOP_USER_NAME": USER}
    with log.open("ab") as output:
        return subprocess.Popen(
            [*command, *job], stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=client,
            env=os.environ | whose | environment, start_new_session=True,
        )  # fmt: skip


class Stopped:
    """A driver that stands still, with all other processes of its container."""

    def __init__(self, python: psutil.Process, others: list[psutil.Process], host: Host, said: Path) -> None:
        """Stop them. `said` is where Python logs."""
        self.python = python
        self.others = others
        self.host = host
        self._said = said
        for process in [python, *others]:
            process.send_signal(signal.SIGSTOP)

    def refused(self) -> bool:
        """Whether Outfall has refused to let the driver go on."""
        text = self._said.read_text(errors="replace") if self._said.exists() else ""
        return any(name in text for name in REFUSED)

    def wake(self, *, python_until: Callable[[], object] | None = None) -> None:
        """Let them go on; Python alone until something has happened, as its JVM ends when YARN tells it to."""
        with suppress(psutil.NoSuchProcess):
            self.python.send_signal(signal.SIGCONT)
        if python_until is not None:
            until(lambda: python_until() or ended(self.python), "what the zombie does when it wakes")
        for process in self.others:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def await_end(self) -> None:
        """Return when the driver has ended, as it must by itself."""
        until(lambda: ended(self.python), "the zombie's end")


def ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


@dataclass
class YarnJob:
    """One stream, or batch job, and where it lives."""

    yarn: Yarn
    root: Path
    """A directory that all hosts share."""
    place: str = "hdfs"
    """Where rows go: `hdfs` and `shared` are whole files, `growing` are files on the shared directory, `postgres`."""
    dsn: str = ""
    api: str = "objects"
    name: str = field(default_factory=lambda: f"job-{uuid.uuid4().hex[:8]}")
    rows: int = 0
    log: str = ""
    """Where the log is, if not beside the checkpoint."""
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> str:
        """The job's directory in HDFS, as a URL that names no namenode: containers must find the configuration."""
        return f"hdfs://{self._in_hdfs}"

    @property
    def _in_hdfs(self) -> str:
        return f"/user/{USER}/{self.name}"

    @property
    def checkpoint(self) -> str:
        # Spark rejects a checkpoint in HDFS whose URL names no namenode.
        return f"hdfs://{self.yarn.hdfs.address}{self._in_hdfs}/checkpoint"

    @property
    def out(self) -> str:
        return f"{self.home}/out" if self.place == "hdfs" else f"{self.root}/out"

    @property
    def order(self) -> Path:
        """What `support/site` reads."""
        return self.root / "order"

    @property
    def said(self) -> Path:
        """Where each driver keeps what Python logs, by the id of its process."""
        return self.root / "said"

    @property
    def enough(self) -> Path:
        """The file that ends a query which goes on."""
        return self.root / "enough"

    def tell(self, deed: str, step: str) -> None:
        """Have the first process that comes to a step do something there: `kill`, `tell` or `stop`."""
        for answer in (f"{self.order}.told", f"{self.order}.stopped"):
            Path(answer).unlink(missing_ok=True)
        self.order.write_text(f"{deed} {step}")

    def feed(self, files: int, rows: int = 200) -> None:
        """Add input, one file per epoch."""
        target = self.root / "input"
        target.mkdir(exist_ok=True)
        start = len(list(target.iterdir()))
        aside = self.root / f"from {start}"
        write_input(flights().slice(self.rows, files * rows), aside, files=files)
        for number in range(files):
            (aside / f"{number:05d}.csv").rename(target / f"{start + number:05d}.csv")
        self.rows += files * rows

    def start(self, deploy: str = "cluster", *, goes_on: bool = False, batch: int | None = None) -> Submission:
        """Submit the job."""
        self.said.mkdir(exist_ok=True)
        given = {
            "input": f"file://{self.root}/input",
            "out": self.out,
            "checkpoint": self.checkpoint,
            "local": f"{self.root}/local",
            "said": str(self.said),
            "mode": "growing" if self.place == "growing" else "whole",
            "api": self.api,
            "master": "yarn",
            "shuffle": "2",
            "split": "20000",
        }
        given |= {"dsn": self.dsn} if self.dsn else {}
        given |= {"recovery": self.log} if self.log else {}
        given |= {"until": str(self.enough)} if goes_on else {}
        given |= {} if batch is None else {"batch": str(batch)}
        words = [word for name, value in given.items() for word in (f"--{name}", value)]
        environment = {**spark_environment(), "OUTFALL_TEST_CRASH_ORDER": str(self.order)}
        passed = {name: environment[name] for name in PASSED_ON}
        settings = SETTINGS | {f"spark.yarn.appMasterEnv.{name}": value for name, value in passed.items()}
        settings |= {f"spark.executorEnv.{name}": value for name, value in passed.items()}
        process = submit(
            self.yarn, [str(flight_driver.__file__), *words], deploy=deploy, name=self.name,
            settings=settings | self.settings, environment=environment, log=self.root / "client.log",
        )  # fmt: skip
        return Submission(self, process)

    def found(self) -> Counter[int]:
        """Return how often each row is there, as another reader finds it."""
        return Counter(self._ids())

    def progress(self) -> int:
        return self.found().total()

    def content(self) -> Any:
        """Return all that a reader sees."""
        if self.place == "postgres":
            return sorted(self._ids())
        if self.place == "hdfs":
            client, out = self.yarn.hdfs.client(), f"{self._in_hdfs}/out"
            return {s.path: client.read(s.path).read() for s in client.list_status(out, False) if not s.isdir}
        return {path.name: path.read_bytes() for path in visible(self.root / "out")}

    def check(self) -> dict[str, int]:
        """Compare what is there with what was fed; return the figures."""
        found = self.found()
        lost = len(set(range(self.rows)) - found.keys())
        doubled = sum(times - 1 for times in found.values())
        figures = {"rows": self.rows, "lost": lost, "doubled": doubled}
        assert (lost, doubled) == (0, 0), f"{figures}\n{self.yarn.logs()}"
        assert found.keys() == set(range(self.rows))
        owners = {status.owner for status in self.yarn.hdfs.client().list_status(self._in_hdfs, True)}
        assert owners == {USER}, f"files in HDFS belong to {owners}"
        return figures

    def _ids(self) -> Iterable[int]:
        if self.place == "postgres":
            with psycopg.connect(self.dsn) as connection:
                return [row[0] for row in connection.execute("SELECT id FROM t").fetchall()]
        if self.place == "hdfs":
            return self._ids_in_hdfs()
        # The last line of a growing file may be half written.
        texts = [path.read_text().splitlines(keepends=True) for path in visible(self.root / "out")]
        return [json.loads(line)["id"] for lines in texts for line in lines if line.endswith("\n")]

    def _ids_in_hdfs(self) -> list[int]:
        client, out = self.yarn.hdfs.client(), f"{self._in_hdfs}/out"
        with suppress(FileNotFoundError):
            files = [s.path for s in client.list_status(out, False) if not s.isdir]
            names = [path for path in files if path.rpartition("/")[2][0] not in "._"]
            return [json.loads(line)["id"] for path in names for line in client.read(path).read().splitlines()]
        return []


class Submission:
    """A job that runs."""

    def __init__(self, job: YarnJob, process: subprocess.Popen[bytes]) -> None:
        self.job = job
        self.yarn = job.yarn
        self.process = process

    @property
    def id(self) -> str:
        """The id of the application, when the resource manager knows it."""
        return str(self.when(lambda: self.yarn.application(self.job.name), "the application")["id"])

    def attempts(self) -> list[dict[str, Any]]:
        """Return the attempts that have a container, the first one first."""
        return [attempt for attempt in self.yarn.attempts(self.id) if attempt.get("containerId")]

    def stop(self, *, at: str) -> Stopped:
        """Stop the driver that comes to a step, as `order` says; its host is cut off: the node manager dies."""
        stopped = self.job.order.with_name("order.stopped")
        self.when(stopped.exists, f"the driver coming to {at!r}")
        python = psutil.Process(int(stopped.read_text()))
        host, folder = self._of(python.pid)
        host.manager.kill()
        others = [process for process in below(folder) if process.pid != python.pid]
        return Stopped(python, others, host, self.job.said / str(python.pid))

    def reported(self) -> tuple[Host, Path]:
        """Return the host and the folder of the driver that comes to the step at which it is to tell where it is."""
        reported = self.job.order.with_name("order.told")
        self.when(reported.exists, "the driver coming to the step")
        return self._of(int(reported.read_text()))

    def executors(self) -> list[tuple[Host, Path]]:
        """Return where the executors of the application work that run now."""
        found = []
        for host in self.yarn.hosts:
            for path in host.folder.glob(f"local/usercache/*/appcache/{self.id}/container_*"):
                commands = [" ".join(process.cmdline()) for process in below(path)]
                if any("YarnCoarseGrainedExecutorBackend" in command for command in commands):
                    found.append((host, path))
        return found

    def fenced(self) -> int:
        """Return how many drivers Outfall has refused to let go on."""
        texts = [path.read_text(errors="replace") for path in self.job.said.iterdir()]
        return sum(any(name in text for name in REFUSED) for text in texts)

    def await_success(self) -> None:
        """Return when the application has ended well."""
        code = self.process.wait(timeout=900)
        assert code == 0, self.complaints()

    def complaints(self) -> str:
        client = (self.job.root / "client.log").read_text(errors="replace")[-3000:]
        return f"{client}\n{self.yarn.logs()}"

    def _of(self, pid: int) -> tuple[Host, Path]:
        at = Path(psutil.Process(pid).cwd())
        (host,) = (host for host in self.yarn.hosts if at.is_relative_to(host.folder))
        return host, at

    def when(self, find: Callable[[], T | None], what: str) -> T:
        """Wait for something that cannot happen any more when the application has ended."""

        def look() -> T | None:
            found = find()
            assert found or self.process.poll() is None, f"the application ended before {what}: {self.complaints()}"
            return found

        found = until(look, what, PATIENCE)
        assert found is not None
        return found


def below(folder: Path) -> list[psutil.Process]:
    """Return the processes that work in a container."""
    found = []
    for pid in reaper.processes_below(folder):
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found


def end_all(folder: Path) -> None:
    """Kill a container at once."""
    for process in below(folder):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def start_again(host: Host) -> None:
    """Start a node manager that was killed, as after its host was: of what it ran, nothing is left."""
    host.end()
    host.manager.start()


def chance_of(*words: object) -> random.Random:
    """Return the chances of one test, the same in each run with the same seed."""
    return random.Random(f"{SEED} {words}")
