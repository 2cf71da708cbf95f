"""A checkpoint as Spark 4 writes it, made without Spark, and what a loss of power does to it."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path

QUERY = "72c4486c-7690-491f-9e47-7460a491b7f6"


class MadeCheckpoint:
    """The checkpoint of a query that reads files, and may keep state in two partitions."""

    def __init__(self, root: Path, *, state: str = "") -> None:
        """Make it; `state` names what a version's file ends in: "delta", "zip" or nothing."""
        self.root = root
        self.state = state
        self.put("metadata", json.dumps({"id": QUERY}))
        for name in ("offsets", "commits", "sources/0"):
            (root / name).mkdir(parents=True)

    def put(self, name: str, text: str | bytes) -> None:
        """Write a file with its checksum."""
        data = text.encode() if isinstance(text, str) else text
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        sums = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
        (path.parent / f".{path.name}.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)

    def plan(self, batch: int) -> None:
        """Write what Spark writes before a batch; every tenth entry of a source holds those before it."""
        lines = [json.dumps({"path": f"file:///in/{n}", "timestamp": 1, "batchId": n}) for n in range(batch + 1)]
        compact = batch % 10 == 9
        self.put(f"sources/0/{batch}{'.compact' * compact}", "\n".join(["v1", *(lines if compact else lines[-1:])]))
        self.put(f"offsets/{batch}", "\n".join(["v1", json.dumps({"conf": {}}), json.dumps({"logOffset": batch})]))

    def run(self, batch: int) -> None:
        """Write the state that a batch makes."""
        for partition in (0, 1) if self.state else ():
            store = f"state/0/{partition}"
            if self.state == "zip":
                self._put_rocksdb(store, batch + 1)
            else:
                self.put(f"{store}/{batch + 1}.{self.state}", f"version {batch + 1}")

    def _put_rocksdb(self, store: str, version: int) -> None:
        files = [{"dfsSstFileName": f"{n}.sst", "sizeBytes": 4} for n in range(1, version + 1)]
        self.put(f"{store}/SSTs/{version}.sst", "rows")
        path = self.root / store / f"{version}.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": files}))
        self.put(f"{store}/{version}.zip", path.read_bytes())

    def commit(self, batch: int) -> None:
        """Write what Spark writes after a batch."""
        self.put(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def whole(self, batch: int) -> None:
        """A batch from its plan to its end."""
        self.plan(batch)
        self.run(batch)
        self.commit(batch)

    def tear(self, *names: str, length: int = 0) -> None:
        """Leave so many bytes of files; none of their checksums when that is nothing."""
        for name in names:
            path = self.root / name
            path.write_bytes(path.read_bytes()[:length])
            if not length:
                (path.parent / f".{path.name}.crc").write_bytes(b"")

    def lose(self, *names: str) -> None:
        """Let files be gone."""
        for name in names:
            path = self.root / name
            path.unlink()
            (path.parent / f".{path.name}.crc").unlink()

    def files(self) -> set[str]:
        """What is there, but checksums, our log and what was moved."""
        found = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return {str(path) for path in found if path.name[0] != "." and not path.parts[0].startswith("outfall")}
