"""The generated parts of README.md, CONTRIBUTING.md and docs/. `python -m tests.generated` writes them.

`<!-- options outfall.kafka.options:KafkaOptions -->` begins the table of an option model, and `<!-- /options -->` ends
it. `<!-- sinks NAME -->` begins what a function of `TABLES` returns from the sinks that pyproject.toml registers.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar, get_args

from pydantic import SecretStr

from outfall.capabilities import OUTPUT_MODES, Guarantee, SaveMode, SupportsDeadLetterSink, SupportsTarget
from outfall.capability_checks import ResolvedSink, resolve
from outfall.errors import CapabilityError, ConfigurationError
from outfall.options import make_options, options_table
from outfall.source_options import check_for_options
from tests.documents import PAGES, ROOT
from tests.schema_changes import aggregations, schema_changes, schema_words
from tests.sink_facts import FACTS, SinkFacts

GENERATED = [*PAGES, ROOT / "CONTRIBUTING.md"]
"""Where such parts may be."""
COMMAND = "python -m tests.generated"

T = TypeVar("T")

_PART = re.compile(
    r"(?P<start><!-- (?P<kind>options|sinks) (?P<name>[\w.:]+) -->\n)(?P<text>.*?)(?=<!-- /(?P=kind) -->)", re.DOTALL
)


@dataclass(frozen=True)
class Package:
    """A package with an entry point in `outfall.sinks`."""

    name: str
    """The value of the option `sink`."""
    module: ModuleType
    factory: Callable[[Mapping[str, str]], Any]
    """Creates a sink from options."""
    facts: SinkFacts

    @property
    def page(self) -> str:
        """The name of its page, which is that of its folder."""
        return self.module.__name__.rpartition(".")[2]

    @property
    def classes(self) -> list[str]:
        """The names of its public sinks, without bases of others."""
        if self.facts.sinks:
            return list(dict.fromkeys(type(sink).__name__ for sink in self.facts.sinks.values()))
        sinks = {name: getattr(self.module, name) for name in self.module.__all__ if name.endswith("Sink")}
        bases = {base for sink in sinks.values() for base in sink.__mro__[1:]}
        return [name for name, sink in sinks.items() if sink not in bases]

    def each(self, what: Callable[[ResolvedSink], T]) -> dict[T, list[str]]:
        """Return what the sinks have, that of the first one first, each with the conditions for it."""
        found: dict[T, list[str]] = {}
        for when, sink in self.facts.sinks.items():
            found.setdefault(what(resolve(sink)), []).append(when)
        return found

    def summary(self, what: Callable[[ResolvedSink], str]) -> str:
        """Return what the sinks have as one text: that of the first one, and the exceptions."""
        (first, _), *others = self.each(what).items()
        return "; ".join([first, *(f"{text} {alternatives(when)}" for text, when in others)])


@cache
def registered() -> list[Package]:
    """Return the packages of the entry points `outfall.sinks`, in their order."""
    found = []
    for name, place in project()["entry-points"]["outfall.sinks"].items():
        module, _, factory = place.partition(":")
        package = import_module(module)
        found.append(Package(name, package, getattr(package, factory), FACTS[name]))
    return found


@cache
def project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def destinations() -> list[Package]:
    """Return the packages whose sinks have a destination of their own, those with the strongest guarantee first."""
    found = [package for package in registered() if package.facts.sinks]
    return sorted(found, key=_strongest, reverse=True)


def alternatives(words: Iterable[str]) -> str:
    """Return conditions as one text: "with a, b or c"."""
    first, *more = words
    if all(word.startswith("with ") for word in (first, *more)):
        more = [word.removeprefix("with ") for word in more]
    return " or ".join(filter(None, [", ".join([first, *more[:-1]]), *more[-1:]]))


def guarantee(sink: ResolvedSink) -> str:
    return _words(sink.guarantee())


def write_modes(sink: ResolvedSink) -> list[str]:
    """Return the values of `write_mode`, or what a sink without this option does."""
    fields = type(sink.sink.options).model_fields
    if "write_mode" in fields:
        return list(get_args(fields["write_mode"].annotation))
    return ["upsert", "delete"] if "delete_marker" in fields else ["append"]


def save_modes(sink: ResolvedSink) -> str:
    taken = [mode for mode in get_args(SaveMode) if _takes(sink.in_save_mode, mode)]
    return "all" if len(taken) == len(get_args(SaveMode)) else ", ".join(f"`{mode}`" for mode in taken)


def output_modes(sink: ResolvedSink) -> str:
    taken = [mode for mode in OUTPUT_MODES if mode in sink.output_modes()]
    return "all" if len(taken) == len(OUTPUT_MODES) else ", ".join(f"`{mode}`" for mode in taken)


def dead_letters(sink: ResolvedSink) -> str:
    """Return the option for the location of dead letters; empty if there is none."""
    options, table = sink.sink.options, "dead_letter_table"
    if SupportsDeadLetterSink in sink.capabilities:
        return "dead_letter"
    given = {name: getattr(options, name) for name in options.model_fields_set} | {table: "dead_letters"}
    in_table = table in type(options).model_fields and _takes(lambda given: make_options(type(options), given), given)
    return table if in_table else ""


def by_options(package: Package, sink: Any) -> bool:
    """Return whether `format("outfall")` takes the options of a sink."""
    fields, texts = type(sink.options).model_fields, {}
    for field in sink.options.model_fields_set:
        value = getattr(sink.options, field)
        if value != fields[field].default:
            texts[field] = _as_text(value)
    return _takes(lambda texts: check_for_options(package.factory(texts), package.name), texts)


def _as_text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    if isinstance(value, list | tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def has_types(sink: ResolvedSink) -> bool:
    """Return whether the target provides the types of its columns."""
    return getattr(sink.sink.row_schema, "__func__", None) is not SupportsTarget.row_schema


def _takes(call: Callable[[Any], Any], value: Any) -> bool:
    try:
        call(value)
    except (CapabilityError, ConfigurationError):
        return False
    return True


def _rows(*columns: str, rows: Iterable[Iterable[str]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (columns, *rows)]
    return "".join([lines[0], f"|{'---|' * len(columns)}\n", *lines[1:]])


def _link(package: Package, folder: str = "") -> str:
    return f"[{package.facts.title}]({folder}{package.page}.md)"


def _wrappers() -> list[Package]:
    return [package for package in registered() if not package.facts.sinks]


def _strongest(package: Package) -> Guarantee:
    return max(resolve(sink).guarantee() for sink in package.facts.sinks.values())


def _words(level: Guarantee) -> str:
    return level.name.lower().replace("_", " ")


def _writes(package: Package) -> str:
    """Return the destination, with the write modes if there are several."""
    modes = write_modes(resolve(next(iter(package.facts.sinks.values())))) if package.facts.sinks else []
    does = f": {', '.join(_MODES.get(mode, mode) for mode in modes)}" if len(modes) > 1 else ""
    return package.facts.destination + does


_MODES = {"changes": "apply changes", "overwrite_partitions": "overwrite partitions"}


def readme() -> str:
    """Each sink with its delivery by default, and what is stronger."""
    extras = project()["optional-dependencies"]

    def rows() -> Iterator[Iterable[str]]:
        for package in destinations():
            (first, _), *others = package.each(ResolvedSink.guarantee).items()
            stronger = [f"{_words(level)} {alternatives(when)}" for level, when in others if level > first]
            delivery = "; ".join([_words(first), *stronger])
            extra = f"`{package.name}`" if extras.get(package.name) else "none"
            yield _link(package, "docs/"), _writes(package), delivery, extra
        for package in _wrappers():
            yield _link(package, "docs/"), _writes(package), "that of each wrapped sink", "none"

    return _rows("Sink", "Writes", "Delivery", "Extra for pip", rows=rows())


def home() -> str:
    """Each class with its guarantee under all options."""

    def rows() -> Iterator[Iterable[str]]:
        for package in (*destinations(), *_wrappers()):
            classes = ", ".join(f"`{name}`" for name in package.classes)
            delivery = package.summary(guarantee) if package.facts.sinks else "that of each wrapped sink"
            yield f"[{classes}]({package.page}.md)", _writes(package), delivery

    return _rows("Sink", "Writes", "Guarantee", rows=rows())


def guarantees() -> str:
    """Each guarantee with its sinks."""
    found: dict[Guarantee, list[str]] = {level: [] for level in sorted(Guarantee, reverse=True)}
    for package in destinations():
        for level, when in package.each(ResolvedSink.guarantee).items():
            by_default = " by default" if level < _strongest(package) else ""
            found[level].append(_link(package) + (by_default if "" in when else f" {alternatives(when)}"))
    return _rows("Guarantee", "Sinks", rows=((f"`{level.name}`", "; ".join(sinks)) for level, sinks in found.items()))


def names() -> str:
    """The values of the option `sink`."""
    *most, last = [f"`{package.name}`" for package in registered()]
    return f"The built-in sinks are {', '.join(most)} and {last}.\n"


def modes() -> str:
    """What each sink takes, by API."""

    def rows() -> Iterator[Iterable[str]]:
        for package in destinations():
            sinks = package.facts.sinks
            writes = ", ".join(f"`{mode}`" for mode in write_modes(resolve(next(iter(sinks.values())))))
            python = [when.removeprefix("with ") for when, sink in sinks.items() if not by_options(package, sink)]
            taken = package.summary(save_modes), package.summary(output_modes)
            yield _link(package), writes, *taken, ", ".join(python) or "—"

    return _rows("Sink", "Writes", "Save modes", "Output modes", "Python API only", rows=rows())


def locations() -> str:
    """Where the dead letters of each sink go."""

    def those(option: str) -> str:
        found = []
        for package in destinations():
            whens = package.each(dead_letters)
            if option in whens:
                words = [when for when in whens[option] if when]
                partly = len(whens) > 1 and "" not in whens[option]
                found.append(_link(package) + (f" {alternatives(words)}" if partly else ""))
        return ", ".join(found)

    rows = [
        (
            those("dead_letter_table"),
            "`dead_letter_table`, a table of the same database",
            "exactly once, in the transaction of the epoch's rows",
        ),
        (
            those("dead_letter"),
            '`dead_letter=` another sink; with `format("outfall")`, `dead_letter.sink` and its options',
            "as for rows of that sink",
        ),
        (
            "[other sinks that report rejected rows](writing-a-sink.md), `ExactlyOnceSink`",
            "`dead_letter=`, or `DeadLetteringSink(sink, dead_letter)`",
            "as above",
        ),
        (those(""), "none: an invalid row fails the query", ""),
    ]
    return _rows("sink", "location of dead letters", "delivery", rows=rows)


def types() -> str:
    """The sinks that give a replay the types of its columns."""
    *most, last = [package.facts.title for package in destinations() if True in package.each(has_types)]
    return f"{', '.join(most)} and {last} provide their column types.\n"


def reference() -> str:
    """The public names of each package."""

    def rows() -> Iterator[Iterable[str]]:
        for package in registered():
            public = [name for name in package.module.__all__ if not name.endswith(("_from_options", "_from_url"))]
            public.sort(key=lambda name: not name.endswith("Sink"))
            yield f"[`outfall.{package.page}`]({package.page}.md)", ", ".join(f"`{name}`" for name in public)

    return _rows("Package", "Contains", rows=rows())


def bases() -> str:
    """The packages of connectors/ that sinks share, with the first sentence of each."""
    own = {package.module.__name__.rpartition(".")[2] for package in destinations()}
    lines = []
    for init in sorted((ROOT / "connectors" / "outfall").glob("*/__init__.py")):
        if init.parent.name not in own:
            first = (ast.get_docstring(ast.parse(init.read_text())) or "").partition("\n")[0]
            lines.append(f"- `{init.parent.relative_to(ROOT)}/`: {first}\n")
    return "".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    table.__name__: table
    for table in (
        readme,
        home,
        guarantees,
        names,
        modes,
        locations,
        types,
        reference,
        bases,
        schema_changes,
        schema_words,
        aggregations,
    )
}


def generated(text: str) -> str:
    """Return a page with its parts as the code has them."""
    return _PART.sub(lambda part: part["start"] + _text(part["kind"], part["name"]), text)


def parts(text: str) -> list[tuple[str, str]]:
    """Return kind and name of each part of a page."""
    return [(part["kind"], part["name"]) for part in _PART.finditer(text)]


def _text(kind: str, name: str) -> str:
    if kind == "sinks":
        return TABLES[name]()
    module, _, model = name.partition(":")
    # The page of the APIs says how a secret is given, and who sees one that is given as text.
    return options_table(getattr(import_module(module), model)).replace("| secret |", "| [secret](apis.md#secrets) |")


def main() -> None:
    """Write each page whose parts differ, and print its path."""
    for page in GENERATED:
        text = page.read_text()
        if (new := generated(text)) != text:
            page.write_text(new)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
