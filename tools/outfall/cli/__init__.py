"""The command line `outfall`: inspects and maintains the recovery data of steps.

The commands are in `outfall.cli.commands`. They require the extra `cli`, but not Spark.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command given by the process arguments, and exit.

    Exit codes: 0 on success, 1 on failure, 2 on a usage error or a missing extra.
    """
    try:
        from outfall.cli.commands.app import outfall
    except ImportError as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        sys.exit(2)
    outfall(prog_name="outfall")
