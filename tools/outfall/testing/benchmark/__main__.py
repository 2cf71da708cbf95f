"""`python -m outfall.testing.benchmark package.module:make_sink`."""

from __future__ import annotations

import argparse
import sys

from outfall.errors import OutfallError


def main(arguments: list[str] | None = None) -> int:
    """Measure the sink that the command line names, and print the table.

    Returns:
        The exit code: 2 where something does not fit together or is missing.
    """
    given = _parser().parse_args(arguments)
    try:
        # Here, so that a missing extra is a line and `--help` needs none.
        from outfall.testing.benchmark.comparison import run

        run(given)
    except (OutfallError, ImportError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m outfall.testing.benchmark",
        description="Measure a sink against one that does nothing: the same rows, the same Spark session, in turn.",
    )
    parser.add_argument(
        "sink", metavar="package.module:make_sink", help="a function that takes an empty directory and returns a sink"
    )
    parser.add_argument("--rows", type=_at_least(1), default=3_000_000, help="in each run (default: 3,000,000)")
    parser.add_argument("--pairs", type=_at_least(1), default=5, help="runs of each sink (default: 5)")
    parser.add_argument("--api", choices=["objects", "options"], default="objects", help="(default: objects)")
    parser.add_argument("--key", help="the column that routes rows to the parts of a fixed sink: id, name or flag")
    parser.add_argument("--epochs", type=_epochs, default=20, help="small epochs in each run of a stream; 0 for none")
    parser.add_argument("--epoch-rows", type=_at_least(1), default=100, help="rows of a small epoch (default: 100)")
    parser.add_argument("--master", default="local[*]", help="where Spark runs, always in this process")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; may be repeated"
    )
    parser.add_argument("--directory", help="where targets and logs are made and removed (default: the system's)")
    return parser


def _at_least(least: int) -> type[int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number  # type: ignore[return-value]


def _epochs(text: str) -> int:
    if int(text) not in (0, *range(2, 901)):
        raise argparse.ArgumentTypeError(f"{text} is not 0, nor between 2 and 900")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
