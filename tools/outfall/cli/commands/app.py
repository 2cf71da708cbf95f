"""The command `outfall` and its error handling."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click
from click.shell_completion import get_completion_class

from outfall.errors import OutfallError, printable
from outfall.redaction import without_credentials
from outfall.version import outfall_version

_MODULES = {
    "accept": "recovery_data",
    "copy": "recovery_data",
    "doctor": "doctor",
    "drain": "recovery_data",
    "export": "export",
    "gc": "gc",
    "move": "recovery_data",
    "repair": "repair",
    "replay": "replay",
    "report": "report",
    "reset": "recovery_data",
    "show": "show",
    "status": "status",
    "watch": "watch",
}
"""Command → module with a function of that name."""


class Commands(click.Group):
    """Commands that report errors as one line of text, unless `--debug` is given.

    Each command is imported when it is called. The imports of some commands need more memory than the whole exporter.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _MODULES and cmd_name not in self.commands:
            module = import_module(f"outfall.cli.commands.{_MODULES[cmd_name]}")
            self.add_command(getattr(module, cmd_name))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and (meant := get_close_matches(args[0], self.list_commands(ctx), 1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant[0]!r}?")
        return super().resolve_command(ctx, args)

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
        # Some errors list the wrong options, one on a line.
        return "\n".join([*map(printable, str(error).split("\n")), *map(printable, notes)])
    # Errors of other libraries can contain credentials.
    text = printable(without_credentials(f"{type(error).__name__}: {error}"))
    return f"{text}\nThis error is unexpected. Run outfall --debug to see the traceback."


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show tracebacks and log lines.")
@click.version_option(outfall_version(), prog_name="outfall")
def outfall(debug: bool) -> None:
    """Inspect and maintain the recovery data of Outfall's sinks.

    RECOVERY is the query's checkpoint location or the value of recovery=: a path or a URL. STEP is the step_id of the
    sink. The default step_id is "sink".
    """
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


@outfall.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print a script that completes commands, options, steps and directories.

    Bash: add eval "$(outfall completion bash)" to ~/.bashrc. zsh: add eval "$(outfall completion zsh)" to ~/.zshrc.
    fish: add "outfall completion fish | source" to config.fish.
    """
    completion_class = get_completion_class(shell)
    assert completion_class is not None  # noqa: S101 - click supports these three
    click.echo(completion_class(outfall, {}, "outfall", "_OUTFALL_COMPLETE").source())
