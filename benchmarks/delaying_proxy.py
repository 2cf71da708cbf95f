"""A proxy that makes each round trip to a local server longer: `python -m benchmarks.delaying_proxy 5432 0.002`.

It prints its port, and ends with its standard input. It is a process of its own, so that no benchmark waits for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from outfall.testing.tcp_proxy import TcpProxy

HOST = "127.0.0.1"


@contextmanager
def delayed(port: int, seconds: float) -> Iterator[int]:
    """Run the proxy before a port of this machine, and yield its own."""
    command = [sys.executable, "-m", "benchmarks.delaying_proxy", str(port), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the proxy has no pipes")
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


if __name__ == "__main__":
    with TcpProxy(HOST, int(sys.argv[1])) as proxy:
        proxy.delay = float(sys.argv[2]) / 2
        print(proxy.port, flush=True)
        sys.stdin.read()
