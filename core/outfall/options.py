"""Options of sinks: one pydantic model each, from which constructor, `format("outfall")` and documentation come."""

from __future__ import annotations

import difflib
import functools
import inspect
import json
import os
import re
import socket
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from outfall.capabilities import SaveMode
from outfall.errors import ConfigurationError
from outfall.existing import EXISTING, ON_EXISTING, Existing
from outfall.serde import parse_json
from outfall.urls import HTTP, masked, split_server

__all__ = [
    "Alias",
    "Duration",
    "Limit",
    "Names",
    "Pairs",
    "SinkOptions",
    "known_values",
    "make_options",
    "names_arguments",
    "options_in_save_mode",
    "options_table",
    "parse_duration",
    "parse_endpoint",
    "parse_limit",
    "parse_names",
    "parse_options",
    "parse_pairs",
    "resolve_secret",
]

_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "milliseconds": 0.001,
    "s": 1, "sec": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600,
    "d": 86_400, "day": 86_400, "days": 86_400,
}  # fmt: skip
_DURATIONS = {"day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1000, "millisecond": 1}
_SIZES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
_ALIKE, _EQUALLY = 0.6, 0.05
_LONGEST = 100
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_endpoint(value: Any) -> Any:
    """Validate the address of a service whose credentials come from elsewhere.

    Raises:
        ValueError: The value is not an http or https URL, or may contain a secret.
    """
    if value is None:
        return None
    split_server(str(value), HTTP, "an http or https URL", "credentials come from the client's own chain")
    return value


def parse_names(value: Any) -> Any:
    """Parse a list of names: a list, or a string with commas between them.

    Raises:
        ValueError: The value is neither of these, or a name is empty.
    """
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ValueError("must be a list of names, or a string with commas between them")
    if not all(names):
        raise ValueError("must not contain an empty name")
    return tuple(names)


Names = Annotated[tuple[str, ...], BeforeValidator(parse_names)]
"""The type of an option that is a list of columns or other names."""


def parse_pairs(value: Any) -> Any:
    """Parse a mapping of names to values, or a JSON object as a string. Numbers and booleans become strings.

    Raises:
        ValueError: The value is neither. The text does not contain the values, which may be secrets.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping) or not all(
        isinstance(item, str | SecretStr | int | float) for item in value.values()
    ):
        raise ValueError('must be a mapping of names to strings, such as {"X-Api-Key": "env:API_KEY"}')
    return {name: item if isinstance(item, str | SecretStr) else json.dumps(item) for name, item in value.items()}


Pairs = Annotated[dict[str, SecretStr], BeforeValidator(parse_pairs)]
"""The type of an option that is a mapping of names to values, which may be secrets."""


def parse_epoch(value: Any) -> int:
    """Parse the number of a batch job's epoch.

    Raises:
        ValueError: The value is not an integer from 0 to 2^63-1, the largest number that every target can store.
    """
    number = int(value) if isinstance(value, str) and re.fullmatch(r"\s*\+?\d{1,19}\s*", value, re.ASCII) else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
        raise ValueError("must be an integer from 0 to 2^63-1, for example the date as 20261121")
    return number


Epoch = Annotated[int, BeforeValidator(parse_epoch)]
"""The type of an option that is the number of an epoch."""


def parse_duration(value: Any) -> timedelta:
    """Parse a duration.

    Args:
        value: A `timedelta`, a number of seconds, or a string: a number with a unit, or without one for seconds.

    Raises:
        ValueError: The value is none of these, or not positive.
    """
    span = parse_limit(value)
    if not span:
        raise ValueError("must be longer than 0")
    return span


def parse_limit(value: Any) -> timedelta:
    """Parse a duration that is a limit, or 0 for no limit. Otherwise as `parse_duration`."""
    if isinstance(value, str):
        value = _seconds(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = _span(value)
    if not isinstance(value, timedelta):
        raise ValueError("must be a duration: a timedelta, seconds, or a string such as '10 minutes'")
    if value < timedelta(0):
        raise ValueError("must not be negative")
    return value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
"""The type of an option that is a duration."""

Limit = Annotated[timedelta, BeforeValidator(parse_limit)]
"""The type of an option that is a duration, or 0 for no limit."""

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound="SinkOptions")  # noqa: E741 - O for options


@dataclass(frozen=True)
class Alias:
    """Another name of an option.

    Args:
        option: The name of the field.
        convert: Returns the field's value if the alias has another unit. Raises `ValueError` for an invalid value.
    """

    option: str
    convert: Callable[[Any], Any] = lambda value: value


class SinkOptions(BaseModel):
    """Base class of a sink's options. Every field has a description, which becomes its row in the documentation.

    Secrets are `SecretStr` fields. `resolve_secret` reads them only when they are used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    aliases: ClassVar[Mapping[str, Alias]] = {}
    """Other names of options. An option that is given under two of its names is an error."""
    owner: ClassVar[str] = ""
    """The owner of these options in errors. Defaults to the class name, with `Sink` in place of `Options`."""

    @property
    def existing(self) -> Existing:
        """What the option `on_existing` means, of a sink that checks its target."""
        return EXISTING[getattr(self, "on_existing")]  # noqa: B009 - not all sinks have the option

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Return the fields for `repr` and `str`, with URLs without user, password, query and fragment."""
        return ((name, _masked(value)) for name, value in super().__repr_args__())


def make_options(model: type[O], values: Mapping[str, Any]) -> O:
    """Validate options with the names of the model, as passed to a constructor.

    Raises:
        ConfigurationError: Names every invalid option, and contains no secret.
    """
    names = {name: name for name in _names(model)}
    return _validated(model, [(given, names.get(given), value) for given, value in values.items()])


def arguments_for(model: type[SinkOptions], local: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor that are options of the model, from its `locals()`."""
    return {name: value for name, value in local.items() if name in model.model_fields}


def names_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Raise a `ConfigurationError` with the nearest name for an unknown keyword argument.

    A decorator for functions and for `__init__`. It preserves the signature, also for type checkers and editors.
    """
    owner = function.__qualname__.removesuffix(".__init__")
    parameters = inspect.signature(function).parameters.values()

    @functools.cache
    def known() -> list[str]:
        names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:  # **options: Unpack[SomeTypedDict]
                names += get_args(get_type_hints(function)[parameter.name])[0].__annotations__
        return [name for name in names if name != "self"]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        unknown = [name for name in kwargs if name not in known()]
        if unknown:
            raise _wrong_options(owner, known(), [(name, _unknown(name, known())) for name in unknown])
        return function(*args, **kwargs)

    return checked


class OptionTexts(dict[str, str]):
    """Options of a sink as strings, and additional ones that the sink gets only if it has them.

    `parse_options` removes from `offered` each option that the model has. The caller handles the others.

    Args:
        own: The options of the sink.
        offered: The options that may be the sink's.
        known: Names of options that are not the sink's, to suggest one of them for a misspelled name.
    """

    def __init__(self, own: Mapping[str, str], offered: Mapping[str, str], known: Collection[str]) -> None:
        super().__init__(own)
        self.offered = dict(offered)
        self.known = known


def parse_options(model: type[O], options: Mapping[str, str]) -> O:
    """Validate options given as strings by Spark: `batchBytes`, `batch_bytes` and `batchbytes` are one option.

    Raises:
        ConfigurationError: Names every option that is unknown, duplicate or invalid, and contains no secret.
    """
    names = {plain_name(name): name for name in _names(model)}
    texts = dict(options)
    others: Collection[str] = ()
    if isinstance(options, OptionTexts):
        others = options.known
        texts |= {given: options.offered.pop(given) for given in list(options.offered) if plain_name(given) in names}
    return _validated(model, [(given, names.get(plain_name(given)), value) for given, value in texts.items()], others)


def plain_name(name: str) -> str:
    """Return the form in which names are compared: `onExisting` and `on_existing` are one option."""
    return name.replace("_", "").lower()


def in_own_case(value: Any, words: Iterable[str]) -> Any:
    """Return the word that equals the value except for its case, or the value itself if there is none."""
    return {word.lower(): word for word in words}.get(value.lower(), value) if isinstance(value, str) else value


def nearest_name(given: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar, or two joined by "or"; `None` if none is similar.

    Compares the letters both in order and in any order, because words of a name are easily swapped.
    """

    def likeness(name: str) -> float:
        matcher = difflib.SequenceMatcher(None, plain_name(given), plain_name(name))
        return (matcher.ratio() + matcher.quick_ratio()) / 2

    found = sorted(((likeness(name), name) for name in known), reverse=True)[:2]
    alike = [name for score, name in found if score >= max(_ALIKE, found[0][0] - _EQUALLY)]
    return " or ".join(alike) or None


def options_in_save_mode(options: O, mode: SaveMode | None) -> O:
    """Return options with the `on_existing` of a save mode of Spark, for `SupportsTarget.in_save_mode`.

    Raises:
        ConfigurationError: `on_existing` was given and contradicts the mode.
    """
    given: str = getattr(options, "on_existing")  # noqa: B009 - only sinks that check their target have the option
    is_default = given == type(options).model_fields["on_existing"].default
    means = ON_EXISTING[mode or "error"]
    if given == means or (mode is None and not is_default):
        return options
    if not is_default:
        raise ConfigurationError(
            f"mode={mode!r} and on_existing={given!r} contradict each other", do="omit one of them"
        )
    return options.model_copy(update={"on_existing": means})


def options_table(model: type[SinkOptions]) -> str:
    """Return the options as a Markdown table for the documentation."""
    lines = ["| Option | Type | Default | Meaning |", "|---|---|---|---|"]
    # Required options first, then those of the sink itself, and last those that it shares with others.
    order = [name for base in model.__mro__ for name in getattr(base, "__annotations__", {})]
    fields = sorted(model.model_fields.items(), key=lambda item: (not item[1].is_required(), order.index(item[0])))
    for name, field in fields:
        names = [name, *(alias for alias, of in model.aliases.items() if of.option == name)]
        names_cell = ", ".join(f"`{each}`" for each in names)
        cells = (names_cell, _type_text(field.annotation), _default_text(field), field.description or "")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def resolve_secret(secret: SecretStr) -> str:
    """Return the value of a secret: of the variable for `env:NAME`, of the file for `file:PATH`, or the string itself.

    Call it where the secret is used, so that plans, checkpoints and pickled sinks do not contain it.

    Raises:
        ConfigurationError: The variable or the file does not exist on this host.
    """
    text = secret.get_secret_value()
    if text.startswith("env:"):
        return _remembered(text, _from_environment(text.removeprefix("env:")))
    if text.startswith("file:"):
        return _remembered(text, _from_file(text.removeprefix("file:")))
    return text


def known_values(*secrets: SecretStr | None) -> list[str]:
    """Return the values of secrets that this process has used, to mask them in texts of a client or a server.

    Of a variable or a file, they are the last ones that were read: it may have been exchanged since the request that
    the server repeats. Reads nothing, and never raises.
    """
    found: list[str] = []
    for text in (secret.get_secret_value() for secret in secrets if secret is not None):
        found += _read.get(text, []) if text.startswith(("env:", "file:")) else [text]
    return found


_read: dict[str, list[str]] = {}
"""The last values of each reference, the newest first."""
_KEPT = 8


def _remembered(reference: str, value: str) -> str:
    _read[reference] = list(dict.fromkeys([value, *_read.get(reference, [])]))[:_KEPT]
    return value


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConfigurationError(
            f"the environment variable {name!r}, which holds a secret, is not set {_here()}",
            # This also holds for the processes on the driver's host in which Spark plans format("outfall").
            why="Spark's Python workers have the environment that Spark was started with; a variable that is set in the"
            " driver later does not reach them",
            do=f'set it for the driver, and for the executors with .config("spark.executorEnv.{name}", …) before the'
            " session starts; or use file:PATH with a file on each host",
        )
    return value


def _from_file(path: str) -> str:
    try:
        return Path(path).read_text().rstrip("\r\n")
    except OSError as error:
        raise ConfigurationError(
            f"the file {path!r}, which holds a secret, cannot be read {_here()}",
            why=error.strerror or type(error).__name__,
            do="create it at this path on the driver's host and on the host of each executor",
        ) from error
    except UnicodeDecodeError:
        # Without the cause, which contains the content of the file.
        raise ConfigurationError(
            f"the file {path!r}, which holds a secret, is not a text file",
            why="it is not in UTF-8",
            do="write the secret as UTF-8 text, for the driver and for the executors",
        ) from None


def _names(model: type[SinkOptions]) -> list[str]:
    return [*model.model_fields, *model.aliases]


def _here() -> str:
    kind = "worker (Spark executor)" if _in_task() else "driver"
    return f"on this {kind}, host {socket.gethostname()}"


def _in_task() -> bool:
    """Return whether this process runs a Spark task. A process without pyspark does not."""
    context = getattr(sys.modules.get("pyspark"), "TaskContext", None)
    return context is not None and context.get() is not None


def _validated(model: type[O], options: Iterable[tuple[str, str | None, Any]], others: Collection[str] = ()) -> O:
    """Validate options, given as triples of their name as given, their resolved name or `None`, and their value."""
    problems: list[tuple[str, str]] = []
    values: dict[str, Any] = {}
    given_as: dict[str, str] = {}
    for given, name, value in options:
        if name is None:
            problems.append((given, _unknown(given, _names(model), others)))
            continue
        alias = model.aliases.get(name, Alias(name))
        if alias.option in given_as:
            problems.append((name, f"given twice, also as {given_as[alias.option]}; omit one of them"))
            continue
        given_as[alias.option] = name
        try:
            words = _words(model.model_fields[alias.option].annotation)
            values[alias.option] = in_own_case(alias.convert(value), words)
        except ValueError as error:
            problems.append((name, _with_value(str(error), value)))
    try:
        made = model.model_validate(values)
    except ValidationError as error:
        # Rules about several options may have failed because one of them is misspelled.
        found = [item for item in error.errors(include_url=False) if item["loc"] or not problems]
        problems += [_problem(model, item, given_as) for item in found]
    else:
        if not problems:
            return made
    owner = model.owner or model.__name__.removesuffix("Options").removesuffix("Sink") + "Sink"
    raise _wrong_options(owner, _names(model), problems)


def _wrong_options(owner: str, known: Sequence[str], problems: Sequence[tuple[str, str]]) -> ConfigurationError:
    """Return the error for invalid options with their names. The name is empty if several are invalid together."""
    if len(problems) == 1:
        ((name, text),) = problems
        what = f"option {name} of {owner}: {text}" if name else f"options of {owner}: {text}"
    else:
        lines = [f"{name}: {text}" if name else text for name, text in problems]
        what = f"options of {owner} are wrong:\n- " + "\n- ".join(lines)
    # A user who passes an invalid value already has the name of the option.
    lost = any(text == _UNKNOWN for _, text in problems)
    return ConfigurationError(what, do=f"use one of: {', '.join(known)}" if lost else None)


def _problem(model: type[SinkOptions], item: ErrorDetails, given_as: Mapping[str, str]) -> tuple[str, str]:
    cause = item.get("ctx", {}).get("error")
    text = str(cause) if isinstance(cause, ValueError) else item["msg"].replace("Input should be", "must be")
    if not item["loc"]:
        return "", text
    name = str(item["loc"][0])
    if item["type"] == "missing":
        return name, "missing"
    hidden = _holds_secret(model.model_fields[name].annotation)
    return given_as.get(name, name), text if hidden else _with_value(text, item["input"])


def _with_value(text: str, value: Any) -> str:
    quoted = repr(_masked(value))
    if isinstance(value, str) and quoted in text:
        return text
    return f"{text}, not {quoted if len(quoted) <= _LONGEST else quoted[:_LONGEST] + '…'}"


def _masked(value: Any) -> Any:
    """Return a value for an error text, with URLs without credentials."""
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    return masked(value) if isinstance(value, str) and (":/" in value or "@" in value) else value


_UNKNOWN = "unknown"


def _unknown(given: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    nearest = nearest_name(given, known) or nearest_name(given, others)
    return f"unknown, did you mean {nearest}?" if nearest else _UNKNOWN


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_holds_secret(arg) for arg in get_args(annotation))


def _words(annotation: Any) -> list[str]:
    """Return the strings that an annotation accepts in a `Literal`."""
    if get_origin(annotation) is Literal:
        return [value for value in get_args(annotation) if isinstance(value, str)]
    return [word for arg in get_args(annotation) for word in _words(arg)]


def _type_text(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _type_text(get_args(annotation)[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(arg) for arg in get_args(annotation) if arg is not types.NoneType)
    if origin is tuple:
        return f"list of {_type_text(get_args(annotation)[0])}s"
    if origin is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, SinkOptions):
        return "mapping"
    names = {
        str: "string", int: "integer", float: "number", bool: "`true`, `false`", SecretStr: "secret",
        timedelta: "duration", ByteSize: "size",
    }  # fmt: skip
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default_text(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required" if field.is_required() else ""
    if field.default is None:
        return "none"
    if field.default in ("", (), {}):
        return "empty"
    return f"`{_as_written(field.default, field.annotation)}`"


def _as_written(default: Any, annotation: Any) -> str:
    """Return a default in the form in which a user can write it."""
    if isinstance(default, bool):
        return str(default).lower()
    if not default:
        return "0"
    if isinstance(default, timedelta):
        count, unit = _in_largest_unit(default // timedelta(milliseconds=1), _DURATIONS)
        return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    if ByteSize in (annotation, *get_args(annotation)):
        count, unit = _in_largest_unit(default, _SIZES)
        return f"{count} {unit}"
    return str(default)


def _in_largest_unit(number: int, units: Mapping[str, int]) -> tuple[int, str]:
    return next((number // size, unit) for unit, size in units.items() if number % size == 0)


def _span(seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"must be at most {timedelta.max.days} days") from error


def _seconds(text: str) -> float:
    match = _TEXT.fullmatch(text)
    unit = (match[2] or "s").lower() if match else ""
    if match is None or unit not in _UNITS:
        raise ValueError(f"{text!r} is not a duration: write for example '30 seconds', '10 minutes' or '1 hour'")
    return float(match[1]) * _UNITS[unit]
