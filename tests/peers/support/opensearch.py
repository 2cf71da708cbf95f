"""OpenSearch and Elasticsearch: the node that the environment names, or one of our own, from Maven's jars."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3

from tests.integration.support.servers import OwnServer, free_ports, open_folder
from tests.peers.support.debian import java_21
from tests.peers.support.jars import class_path, compiling_java, jars

ADDRESS = "OUTFALL_TEST_OPENSEARCH"
PRODUCTS = ("opensearch-2.19", "elasticsearch-9.1")
"""The newest nodes of both products, by the profiles of their jars."""
OLDER = ("elasticsearch-7.17", "elasticsearch-8.19")
"""What there is besides."""

_SECONDS = 30


class OpenSearch:
    """A node that answers at a URL; what tests ask it goes by its REST interface, as text."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = urllib3.PoolManager(timeout=_SECONDS, retries=False)

    def ask(self, method: str, path: str, body: Any = None, **parameters: str) -> tuple[int, Any]:
        """Send a request, whose body is JSON, or lines of JSON if it is a list; return the status and the answer."""
        lines = "".join(f"{json.dumps(line)}\n" for line in body) if isinstance(body, list) else json.dumps(body)
        kind = "application/x-ndjson" if isinstance(body, list) else "application/json"
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        response = self._http.request(
            method, f"{self.url}{path}?{query}", body=None if body is None else lines, headers={"Content-Type": kind}
        )
        return response.status, json.loads(response.data) if response.data else None

    def index(self, name: str, settings: Mapping[str, Any] | None = None) -> str:
        """Make an index without replicas, which one node cannot place, and return its name."""
        given = {"number_of_shards": 2, "number_of_replicas": 0} | dict(settings or {})
        status, answer = self.ask("PUT", f"/{name}", {"settings": given})
        assert status == 200, answer
        return name

    def documents(self, index: str) -> dict[str, Any]:
        """Return the documents that a search finds, by their ids; at most 10,000."""
        self.ask("POST", f"/{index}/_refresh")
        status, answer = self.ask("POST", f"/{index}/_search", {"query": {"match_all": {}}}, size="10000")
        assert status == 200, answer
        return {hit["_id"]: hit["_source"] for hit in answer["hits"]["hits"]}


class Node(OpenSearch):
    """A node of our own, that may be killed and started again on its data and ports. It takes some ten seconds."""

    def __init__(self, folder: Path, product: str = PRODUCTS[0]) -> None:
        """Start nothing yet."""
        http, transport = free_ports(2)
        super().__init__(f"http://127.0.0.1:{http}")
        self.snapshots = folder / "snapshots"
        """Where it may keep snapshots."""
        settings = {
            "path.repo": str(self.snapshots), "http.port": http, "transport.port": transport,
            "network.host": "127.0.0.1", "http.type": "netty4", "transport.type": "netty4", "cluster.name": "peer",
            "discovery.type": "single-node",
            # Or it creates no index on a disk that is almost full.
            "cluster.routing.allocation.disk.threshold_enabled": False,
        }  # fmt: skip
        (folder / "config").mkdir()
        # JSON is YAML.
        (folder / "config" / f"{product.partition('-')[0]}.yml").write_text(json.dumps(settings))
        # Java compiles the file that it is given, in memory.
        command = [
            *((compiling_java(),) if product != "elasticsearch-9.1" else java_21()),
            "-Xmx512m", "-XX:TieredStopAtLevel=1", *_program(product, folder), str(folder),
        ]  # fmt: skip
        self.server = OwnServer(command, folder / "log", self._answers)

    def _answers(self) -> bool:
        try:
            status, answer = self.ask("GET", "/_cluster/health", wait_for_status="yellow", timeout="1s")
        except urllib3.exceptions.HTTPError:
            return False
        return status == 200 and not answer["timed_out"]


def _program(product: str, folder: Path) -> list[str]:
    """Return the classes and the source of a node, after its plugins are where it expects them."""
    here = Path(__file__).parent
    if product.startswith("opensearch"):
        return ["-cp", class_path(product), str(here / "OpenSearchNode.java")]
    if product.startswith("elasticsearch-7"):
        return ["-cp", class_path(product), str(here / "Elasticsearch7Node.java")]
    # Later ones read the descriptors of Java's modules. A plugin has a folder of its own.
    plugin = folder / "modules" / "transport-netty4"
    plugin.mkdir(parents=True)
    modules = []
    for jar in jars(product).iterdir():
        if "netty" in jar.name:
            (plugin / jar.name).symlink_to(jar)
        else:
            modules.append(str(jar))
    (version,) = (jar.stem.removeprefix("elasticsearch-") for jar in jars(product).glob("elasticsearch-[89]*.jar"))
    (plugin / "plugin-descriptor.properties").write_text(
        f"description=netty\nversion={version}\nelasticsearch.version={version}\njava.version=17\n"
        "name=transport-netty4\nclassname=org.elasticsearch.transport.netty4.Netty4Plugin\n"
        "modulename=org.elasticsearch.transport.netty4\n"
    )
    opened = "org.apache.lucene.core/org.apache.lucene.codecs.lucene99=org.elasticsearch.server"
    return [
        "--module-path", os.pathsep.join(modules), "--add-modules", "ALL-MODULE-PATH,jdk.net", f"--add-opens={opened}",
        str(here / "ElasticsearchNode.java"),
    ]  # fmt: skip


@contextmanager
def own_node(product: str = PRODUCTS[0]) -> Iterator[Node]:
    """Run a node of our own."""
    with open_folder() as folder:
        node = Node(folder, product)
        node.server.start()
        try:
            yield node
        finally:
            node.server.kill()


@contextmanager
def opensearch(product: str = PRODUCTS[0]) -> Iterator[OpenSearch]:
    """Find the node that the environment names, or run one of a product."""
    if given := os.environ.get(ADDRESS):
        yield OpenSearch(given.rstrip("/"))
        return
    with own_node(product) as node:
        yield node
