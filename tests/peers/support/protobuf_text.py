"""Messages between bytes and Protobuf's text format, by Java's library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.peers.support.jars import class_path, compiling_java

PROTOBUF = "protobuf-4.36"
_SECONDS = 120


class JavaProtobuf:
    """A message of a schema. Each call takes a second, for all that it is given."""

    def __init__(self, folder: Path, files: Mapping[str, str], message: str) -> None:
        """Compile `.proto` texts by name, the last of which has the message, whose name is without its package."""
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        main, self._set, self._message = list(files)[-1], folder / "descriptors", message
        protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
        subprocess.run([*protoc, f"--descriptor_set_out={self._set}", main], check=True, cwd=folder)

    def read(self, messages: Sequence[bytes]) -> list[str]:
        """Return the text of each message, in one line."""
        return self._run([f"read {message.hex()}" for message in messages])

    def write(self, texts: Sequence[str]) -> list[bytes]:
        """Return the bytes of each text."""
        return [bytes.fromhex(line) for line in self._run([f"write {text}" for text in texts])]

    def _run(self, lines: Sequence[str]) -> list[str]:
        program = Path(__file__).with_name("ProtobufText.java")
        command = [
            compiling_java(), "-XX:TieredStopAtLevel=1", "-cp", class_path(PROTOBUF), str(program), str(self._set),
            self._message,
        ]  # fmt: skip
        given = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        found = done.stdout.splitlines()
        assert len(found) == len(lines), done.stderr
        return found
