"""`outfall export`: Prometheus metrics from the logs of many steps."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import click

from outfall.cli.commands.arguments import recovery_location
from outfall.recovery.log import RecoveryConfig


@click.command()
@click.argument("recoveries", type=recovery_location, metavar="RECOVERY", nargs=-1, required=True)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9400, show_default=True, help="Port; 0 selects a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen address.")
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="Seconds between two reads."
)
def export(recoveries: Sequence[RecoveryConfig], port: int, host: str, every: float) -> None:
    """Serve Prometheus metrics from the logs, until Ctrl-C.

    RECOVERY can be a directory or a prefix with checkpoints up to four levels below it, including new ones. The command
    only reads. It can run on any host with access to the logs, for running and for stopped queries.
    """
    from outfall.metrics.exporter import Exporter

    try:
        exporter = Exporter.start(recoveries, host=host, port=port, every=every)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    click.echo(f"http://{host}:{exporter.port}/metrics")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        exporter.close()
