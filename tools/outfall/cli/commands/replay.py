"""`outfall replay`: writes dead letters into a sink, each exactly once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from outfall.capabilities import SupportsTarget
from outfall.capability_checks import capabilities_of
from outfall.cli.commands.arguments import (
    ChosenSink,
    complete_location,
    json_option,
    recovery_location,
    sink_options,
    step_id,
)
from outfall.cli.commands.output import console, print_json, say, table
from outfall.errors import ConfigurationError, printable
from outfall.metrics.in_words import moment
from outfall.recovery.log import RecoveryConfig
from outfall.redaction import without_credentials
from outfall.replay.ddl import parse_ddl
from outfall.replay.dead_letters import DeadLetterFilter, FoundDeadLetter
from outfall.replay.replaying import DeadLetterReplay, ReplayResult
from outfall.replay.rows import AS_JSON, RowMaker
from outfall.replay.sources import dead_letters_at

_KINDS_SHOWN = 20
_EXAMPLES = 3
_EXCERPT = 200


def _pattern(ctx: click.Context, param: click.Parameter, text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise click.BadParameter(f"invalid regular expression: {error}") from error


def _epochs(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    found = re.fullmatch(r"(\d*)(\.\.)?(\d*)", text)
    if found is None or not (found[1] or found[3]):
        raise click.BadParameter("write one epoch or FROM..TO; either bound is optional")
    first = int(found[1]) if found[1] else None
    last = int(found[3]) if found[3] else None
    return (first, last) if found[2] else (first, first)


def _time(ctx: click.Context, param: click.Parameter, text: str | None) -> datetime | None:
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter("write a time such as 2026-11-23T10:00:00Z; the default time zone is UTC") from error
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found


@click.command()
@click.argument("dead_letters", metavar="LETTERS", shell_complete=complete_location)
@sink_options
@click.option(
    "--recovery",
    type=recovery_location,
    required=True,
    metavar="RECOVERY",
    help="Location of the replay's own log: a path or a URL, the same in each run.",
)
@click.option(
    "--step", type=step_id, metavar="STEP", default="replay", show_default=True, help="Step id of the replay."
)
@click.option("--reason", callback=_pattern, metavar="REGEX", help="Only dead letters whose reason matches.")
@click.option("--code", "codes", multiple=True, help="Only dead letters with this code. Can be repeated.")
@click.option(
    "--of-step", "steps", multiple=True, metavar="STEP", help="Only dead letters of this step. Can be repeated."
)
@click.option("--part", "parts", multiple=True, help="Only dead letters of this part. Can be repeated.")
@click.option("--epoch", "epochs", callback=_epochs, metavar="FROM..TO", help="Only dead letters of these epochs.")
@click.option("--since", callback=_time, metavar="TIME", help="Only dead letters rejected at this time or later.")
@click.option("--until", callback=_time, metavar="TIME", help="Only dead letters rejected before this time.")
@click.option(
    "--schema",
    metavar="DDL",
    help="Columns such as 'id bigint, name string', if the sink does not provide them; or json for JSON's own types.",
)
@click.option("--key", metavar="COLUMN", help="Routing column, for a sink with parts.")
@click.option("--text-column", metavar="COLUMN", help="Column for the whole text of a dead letter that is not a row.")
@click.option(
    "--replace-newer",
    is_flag=True,
    help="Permit a sink that writes by key and keeps no order: a replayed row may replace or delete a newer one.",
)
@click.option("--dry-run", is_flag=True, help="Show the effect, and write nothing.")
@json_option
def replay(
    dead_letters: str,
    chosen: ChosenSink,
    recovery: RecoveryConfig,
    step: str,
    reason: re.Pattern[str] | None,
    codes: Sequence[str],
    steps: Sequence[str],
    parts: Sequence[str],
    epochs: tuple[int | None, int | None],
    since: datetime | None,
    until: datetime | None,
    schema: str | None,
    key: str | None,
    text_column: str | None,
    replace_newer: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write dead letters into a sink, each exactly once.

    LETTERS is the location of the dead letters: a path or URL of a file or directory, such as s3://…;
    postgresql://user@host/database?table=NAME or mysql://user@host/database?table=NAME; or kafka://host:9092/topic.
    Pass passwords as env:NAME or file:PATH.

    After an interrupted run, the next run continues. If the sink rejects a row again, the row becomes a new dead
    letter, or the command fails if the sink has no location for dead letters. The exit code is 1 if a dead letter
    cannot be converted to a row, or if a row is rejected again.
    """
    wanted = DeadLetterFilter(
        reason, frozenset(codes), frozenset(steps), frozenset(parts), *epochs, since=since, until=until
    )
    sink = chosen.make()
    job = DeadLetterReplay(
        sink,
        recovery,
        step,
        _row_maker(sink, schema, text_column),
        key=key,
        replace_newer=replace_newer,
        commit=chosen.commit_policy(),
    )
    seen = _Seen()
    found = seen.of(each for each in dead_letters_at(dead_letters)() if wanted.takes(each.dead_letter))
    result = job.preview(found) if dry_run else job.run(found)
    if as_json:
        _print_json(result, seen if dry_run else None)
    else:
        _print(result, step, seen if dry_run else None)
    if result.left or result.refused:
        raise click.exceptions.Exit(1)


def _row_maker(sink: Any, schema: str | None, column: str | None) -> RowMaker:
    if schema == AS_JSON:
        return RowMaker(None, column)
    columns = parse_ddl(schema) if schema is not None else None
    if columns is None and SupportsTarget in capabilities_of(sink):
        columns = sink.row_schema()
    if columns is None:
        raise ConfigurationError(
            "the sink does not provide the types of its columns",
            do="give columns and types with --schema 'id bigint, name string'; for a sink that writes JSON, use"
            " --schema json",
        )
    return RowMaker(columns, column)


class _Seen:
    """Statistics and examples of the selected dead letters, for a dry run."""

    def __init__(self) -> None:
        self.kinds: Counter[tuple[str | None, str]] = Counter()
        self.examples: list[FoundDeadLetter] = []

    def of(self, dead_letters: Iterator[FoundDeadLetter]) -> Iterator[FoundDeadLetter]:
        for found in dead_letters:
            self.kinds[found.dead_letter.code, found.dead_letter.reason] += 1
            if len(self.examples) < _EXAMPLES:
                self.examples.append(found)
            yield found


def _print(result: ReplayResult, step: str, seen: _Seen | None) -> None:
    for place, why in result.reasons:
        say(f"skipped: {without_credentials(place)}: {without_credentials(why)}", err=True)
    if result.left > len(result.reasons):
        say(f"skipped: {result.left - len(result.reasons):,} more", err=True)
    said = (
        f"{result.found:,} dead letters: {result.before:,} replayed before, {result.left:,} cannot be converted to rows"
    )
    if seen is None:
        refused = f", {result.refused:,} of them rejected again" if result.refused else ""
        say(f"{said}, {result.replayed:,} replayed{refused}")
        if result.refused:
            say(
                f"The rejected rows are new dead letters of step {step}. Fix the cause before the next run, which"
                " retries them; or exclude them with --of-step.",
                err=True,
            )
        return
    new = result.found - result.before - result.left
    kinds = seen.kinds.most_common(_KINDS_SHOWN)
    shown = table(["count", "code", "reason"], right=["count"])
    for (code, reason), count in kinds:
        shown.add_row(f"{count:,}", printable(code or ""), printable(without_credentials(reason)))
    console().print(shown)
    if len(seen.kinds) > len(kinds):
        say(f"and {len(seen.kinds) - len(kinds):,} other reasons")
    for found in seen.examples:
        letter = found.dead_letter
        say(f"example: {moment(letter.time)}, step {letter.step}, epoch {letter.epoch}: {letter.row[:_EXCERPT]}")
    say(f"{said}, {new:,} would be replayed")


def _print_json(result: ReplayResult, seen: _Seen | None) -> None:
    left = [{"place": without_credentials(place), "why": without_credentials(why)} for place, why in result.reasons]
    shown: dict[str, Any] = {"found": result.found, "before": result.before, "left": result.left, "reasons_left": left}
    if seen is None:
        shown |= {"replayed": result.replayed, "refused": result.refused, "epochs": result.epochs}
    else:
        kinds = seen.kinds.most_common(_KINDS_SHOWN)
        shown["would_replay"] = result.found - result.before - result.left
        shown["kinds"] = [{"code": c, "reason": without_credentials(r), "letters": n} for (c, r), n in kinds]
        shown["examples"] = [found.dead_letter for found in seen.examples]
    print_json(shown)
