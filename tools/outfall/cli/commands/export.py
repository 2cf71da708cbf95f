"""`outfall export`: what the logs of many steps say, for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import click

from outfall.cli.commands.arguments import recovery_location
from outfall.recovery.log import RecoveryConfig


@click.command()
@click.argument("recoveries", type=recovery_location, metavar="RECOVERY", nargs=-1, required=True)
@click.option("--port", type=click.IntRange(0, 65535), default=9400, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds between two looks."
)
def export(recoveries: Sequence[RecoveryConfig], port: int, host: str, every: float) -> None:
    """Serve what the logs say as metrics for Prometheus, until Ctrl-C.

    RECOVERY may also be a directory or a prefix with many checkpoints: those at most four levels below it are found,
    new ones too. Reads only, and may run anywhere that reaches the logs, while queries run and when they are dead.
    """
    from outfall.metrics.exporter import Exporter

    try:
        exporter = Exporter(recoveries, host=host, port=port, every=every)
    except OSError as error:
        raise click.ClickException(f"{host}:{port} cannot be listened at: {error.strerror or error}") from error
    click.echo(f"http://{host}:{exporter.port}/metrics")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        exporter.close()
