"""`python -m outfall.testing.benchmark package.module:make_sink`."""

from __future__ import annotations

import argparse
import sys

from outfall.errors import OutfallError


def main(arguments: list[str] | None = None) -> int:
    """Measure the given sink, and print the table. Returns 2 for invalid or missing arguments and extras."""
    given = _parser().parse_args(arguments)
    try:
        # Imported here, so that a missing extra is a one-line error and `--help` needs no extra.
        from outfall.testing.benchmark.comparison import run

        run(given)
    except (OutfallError, ImportError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - a command
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m outfall.testing.benchmark",
        description="Measure a sink and an empty sink alternately, with the same rows in the same Spark session.",
    )
    parser.add_argument(
        "sink", metavar="package.module:make_sink", help="function that takes an empty directory and returns a sink"
    )
    parser.add_argument("--rows", type=_at_least(1), default=3_000_000, help="rows per run (default: 3,000,000)")
    parser.add_argument("--pairs", type=_at_least(1), default=5, help="runs per sink (default: 5)")
    parser.add_argument("--api", choices=["python", "format"], default="python", help="(default: python)")
    parser.add_argument("--key", help="routing column for a fixed sink: id, name or flag")
    parser.add_argument("--epochs", type=_epochs, default=20, help="number of small epochs per stream; 0 for none")
    parser.add_argument("--epoch-rows", type=_at_least(1), default=100, help="rows per small epoch (default: 100)")
    parser.add_argument("--master", default="local[*]", help="Spark master; always in this process")
    parser.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="Spark setting; can be repeated"
    )
    parser.add_argument("--directory", help="directory for temporary targets and logs (default: the system's)")
    return parser


def _at_least(least: int) -> type[int]:
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return number  # type: ignore[return-value]


def _epochs(text: str) -> int:
    if int(text) not in (0, *range(2, 901)):
        raise argparse.ArgumentTypeError(f"{text} is neither 0 nor between 2 and 900")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
