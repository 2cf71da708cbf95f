"""The command line, `outfall`: see into a step's recovery data, and act on it while its query does not run.

The commands are in `outfall.cli.commands`. They need the extra `cli`, and no Spark.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the arguments of this process name, and end the process.

    Exit codes: 0 for what was done, 1 for what failed, 2 for a wrong call or a missing extra.
    """
    try:
        from outfall.cli.commands.app import outfall
    except ImportError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        sys.exit(2)
    outfall(prog_name="outfall")
