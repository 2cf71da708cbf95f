"""A real Prometheus, and promtool, as `apt-get install prometheus` brings them."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.integration.support.servers import OwnServer, free_port
from tests.programs import program

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy" / "prometheus"


def promtool(*arguments: str, said: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool in the folder of the rules, on what is said to it."""
    command = [program("promtool"), *arguments]
    return subprocess.run(command, cwd=DEPLOY, input=said, capture_output=True, text=True, check=False)


def scraped(port: int) -> str:
    """Return what an exporter says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


class Prometheus(OwnServer):
    """Scrapes an exporter each second, with the alerts that are deployed."""

    def __init__(self, folder: Path, exporter_port: int, *, job: str = "outfall") -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(DEPLOY / "outfall.rules.yml")],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{exporter_port}"]}]},
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        command = [
            program("prometheus"),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]
        super().__init__(command, folder / "prometheus.log", self._answers)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an expression, as the API gives them.

        Raises:
            AssertionError: Prometheus refuses it.
        """
        return list(self._get("query", query=expression)["result"])

    def names(self) -> set[str]:
        """Return the names of all series."""
        return set(self._get("label/__name__/values"))

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        return {alert["labels"]["alertname"] for alert in self._get("alerts")["alerts"] if alert["state"] == "firing"}

    def _get(self, path: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
            return True
        return False


@contextmanager
def prometheus(folder: Path, exporter_port: int) -> Iterator[Prometheus]:
    """Run a server of our own."""
    server = Prometheus(folder, exporter_port)
    server.start()
    try:
        yield server
    finally:
        server.kill()
