"""The command `outfall`, and what becomes of errors."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

import click
from click.shell_completion import get_completion_class

from outfall.errors import OutfallError
from outfall.redaction import without_credentials
from outfall.version import outfall_version

_MODULES = {
    "copy": "recovery_data",
    "doctor": "doctor",
    "drain": "recovery_data",
    "export": "export",
    "gc": "gc",
    "repair": "repair",
    "replay": "replay",
    "report": "report",
    "reset": "recovery_data",
    "show": "show",
    "status": "status",
    "watch": "watch",
}
"""The module that has each command, as a function of its name."""


class Commands(click.Group):
    """Commands whose errors are a line of text, unless `--debug` is given.

    Each is loaded when it is called: what some of them need would take more memory than all of an exporter.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _MODULES and cmd_name not in self.commands:
            module = import_module(f"outfall.cli.commands.{_MODULES[cmd_name]}")
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(_text_of(error)) from error


def _text_of(error: Exception) -> str:
    notes = getattr(error, "__notes__", ())
    if isinstance(error, OutfallError | ImportError):
        return "\n".join([str(error), *notes])
    # Not one of ours: its text may hold anything.
    text = without_credentials(f"{type(error).__name__}: {error}")
    return f"{text}\nThis was not foreseen; outfall --debug shows where it happened."


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show tracebacks, and log what is done.")
@click.version_option(outfall_version(), prog_name="outfall")
def outfall(debug: bool) -> None:
    """See into the recovery data of Outfall's sinks, and act on it.

    RECOVERY is the query's checkpoint location or what it was given as recovery=: a path or a URL. STEP is the sink's
    step_id; where none was given it is "sink".
    """
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


@outfall.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print the script that makes a shell complete commands, options, steps and directories.

    In ~/.bashrc write: eval "$(outfall completion bash)"; in ~/.zshrc the same with zsh; in config.fish of fish:
    outfall completion fish | source
    """
    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click knows these three
    click.echo(made(outfall, {}, "outfall", "_OUTFALL_COMPLETE").source())
