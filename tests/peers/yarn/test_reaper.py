"""What containers of a killed run would be left is ended by a process that outlives the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.peers.support import reaper


def test_what_works_below_a_folder_ends_with_the_run_that_made_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "container").mkdir(parents=True)
    container = subprocess.Popen(["sleep", "600"], cwd=folder / "container", start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], cwd=tmp_path)
    try:
        run = subprocess.Popen([sys.executable, str(reaper.__file__), str(folder)], stdin=subprocess.PIPE)
        assert reaper.processes_below(folder) == [container.pid]
        run.communicate()
        assert container.wait() < 0
        assert not folder.exists()
        assert other.poll() is None
    finally:
        other.kill()
        container.kill()
