"""The recipe of docs/where-it-runs.md: an environment without PySpark is shipped with the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.support.reading import write_source
from tests.peers.support.hadoop import Hdfs
from tests.peers.support.yarn import USER, Yarn
from tests.peers.support.yarn import yarn as running_yarn
from tests.peers.support.yarn_job import SETTINGS, submit
from tests.peers.yarn import shipped_job

ROOT = Path(__file__).parents[3]
SECRET = "s3cr3t-of-tests"
IMPATIENT = {"spark.network.timeout", "spark.network.timeoutInterval", "spark.executor.heartbeatInterval"}
SHIPPED = "./environment/bin/python"

pytestmark = [pytest.mark.spark, pytest.mark.long]

PATIENT = {
    # YARN's default. The other tests lose node managers on purpose.
    "yarn.nm.liveness-monitor.expiry-interval-ms": "600000",
    # Else YARN writes all variables of a container beside its logs, as the page says.
    "yarn.nodemanager.log-container-debug-info.enabled": "false",
}


@pytest.fixture(scope="module")
def patient(hdfs: Hdfs) -> Iterator[Yarn]:
    """A cluster that gives up nobody."""
    with running_yarn(hdfs, PATIENT) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed environment, built once; pip fetches what Outfall needs."""
    folder = tmp_path_factory.mktemp("shipped")
    made = folder / "env"

    def run(*command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

    base = Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name
    run(str(base), "-m", "venv", str(made))
    run(f"{made}/bin/pip", "wheel", "--quiet", "--no-deps", "-w", "dist", str(ROOT))
    (wheel,) = folder.glob("dist/*.whl")
    run(f"{made}/bin/pip", "install", "--quiet", f"{wheel}[hdfs]", "venv-pack", "setuptools<80")
    run(f"{made}/bin/venv-pack", "--prefix", str(made), "-o", "outfall_venv.tar.gz")
    return folder


@pytest.mark.parametrize("deploy", ["cluster", "client"])
def test_a_shipped_environment_writes_with_the_pyspark_of_the_cluster(
    patient: Yarn, environment: Path, tmp_path: Path, deploy: str
) -> None:
    yarn = patient
    home = f"/user/{USER}/{uuid.uuid4().hex}"
    source = write_source(tmp_path / "source", files=2, rows=100)
    settings = {name: value for name, value in SETTINGS.items() if name not in IMPATIENT}
    settings |= {"spark.yarn.maxAppAttempts": "1", "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1"}
    settings |= {"spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1", "spark.yarn.appMasterEnv.DB_SECRET": SECRET}
    settings |= {"spark.executorEnv.DB_SECRET": SECRET}
    variables = {"PYTHONPATH": "", "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": SHIPPED, "DB_SECRET": SECRET}
    if deploy == "cluster":
        settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] = SHIPPED
    else:
        variables["PYSPARK_DRIVER_PYTHON"] = f"{environment}/env/bin/python"
    running = submit(
        yarn, [str(shipped_job.__file__), f"file://{source}", f"hdfs://{yarn.hdfs.address}{home}"], deploy=deploy,
        name=f"shipped-{deploy}", settings=settings, environment=variables, log=tmp_path / "log",
        options=["--archives", f"{environment}/outfall_venv.tar.gz#environment"],
    )  # fmt: skip
    assert running.wait(timeout=600) == 0, (tmp_path / "log").read_text()[-3000:] + yarn.logs()
    client = yarn.hdfs.client()
    for api in ("objects", "options"):
        files = [s.path for s in client.list_status(f"{home}/{api}", False) if not s.isdir]
        found = Counter(json.loads(line)["id"] for path in files for line in client.read(path).read().splitlines())
        assert found == dict.fromkeys(range(200), 1)
    said = (tmp_path / "log").read_text() + yarn.logs()
    imported = said.partition("driver: ")[2].partition("\n")[0]
    assert ("/environment/lib/python" if deploy == "cluster" else f"{environment}/env/lib/python") in imported
    assert ("pyspark.zip" if deploy == "cluster" else "/pyspark/__init__.py") in imported
    assert "the secret is known: True [True]" in said
    logs = [tmp_path / "log", *(path for path in yarn.folder.glob("host*/logs/*/*/*") if path.is_file())]
    assert [path for path in logs if SECRET in path.read_text(errors="replace")] == []
    assert os.environ.get("DB_SECRET") is None
