"""Protobuf schemas: `.proto` text compiled to descriptors, and the schema that a DataFrame's columns have.

The compiler is protoc of `grpcio-tools`, which brings the files of `google/protobuf`. A message in Confluent's wire
format names its type by position: that in the file, then those inside of each message on the way.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from outfall.errors import ConfigurationError, TransientError, require_extra
from outfall.formats.types import refuse
from outfall.schema_registry.schemas import Schema, WholeSchema, check_field_name

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)
_MAIN, _COMPILED = "outfall_schema.proto", "outfall_compiled"
_LONGEST_PATH = 250
"""Bytes. A name of a file has at most 255."""
_SECONDS = 60
_SHOWN = 500
_TAKEN = range(19000, 20000)
"""Numbers of fields that Protobuf keeps for itself."""


class ProtoFile:
    """A compiled schema. Use `compiled`, which keeps them."""

    def __init__(self, files: Any) -> None:
        pool = descriptor_pool.DescriptorPool()
        for each in files.file:
            pool.AddSerializedFile(each.SerializeToString())
        self._pool, self._file = pool, files.file[-1]
        self.known = {name for name, _, _ in _named(self._file.message_type, self._file.package)}
        """Full names of the messages of the file, without those of maps."""

    def message(self, name: str | None) -> Any:
        """Return the descriptor of a message, by its full name; the first one of the file for `None`.

        Raises `ConfigurationError` if the file has none of this name.
        """
        if name is None and self._file.message_type:
            name = _full(self._file.package, self._file.message_type[0].name)
        if name is None or name not in self.known:
            raise ConfigurationError(
                f"the schema has no message {name or ''}".rstrip(),
                why=f"it has {', '.join(sorted(self.known)) or 'none'}",
                do="name a message with its package, such as com.example.Flight",
            )
        return self._pool.FindMessageTypeByName(name)

    def at(self, indexes: Sequence[int]) -> set[str]:
        """Return the full names of the messages that positions may mean.

        Clients differ in whether the entries of maps, which are messages too, count: Java's reads the text, which has
        none, others read the descriptor.
        """
        path = list(indexes)
        return {
            name
            for name, with_maps, without in _named(self._file.message_type, self._file.package)
            if path in (with_maps, without)
        }

    def indexes(self, name: str) -> list[int]:
        """Return the positions of a message. Raises `ConfigurationError` if clients would count them differently."""
        for each, with_maps, without in _named(self._file.message_type, self._file.package):
            if each == name:
                if with_maps != without:
                    raise ConfigurationError(
                        f"readers would not agree on the position of the message {name}",
                        why="some count the entries of maps that are declared before it, others do not",
                        do="declare the messages inside of a message before its maps",
                    )
                return without
        raise ConfigurationError(
            f"the schema has no message {name}", do="name one of the file itself, with its package"
        )

    def same(self, other: ProtoFile) -> bool:
        """Whether both files declare the same, whatever their texts: registries write them anew."""
        return _content(self._file) == _content(other._file)


@lru_cache(1000)
def compiled(whole: WholeSchema) -> ProtoFile:
    """Return a compiled schema, which the process keeps.

    Raises `ConfigurationError` if it is invalid, and `TransientError` if the compiler does not run or end.
    """
    require_extra("kafka", "grpc_tools")
    with TemporaryDirectory(prefix="outfall-proto-") as directory:
        root = Path(directory)
        for name, each in whole.referenced:
            _write(root, name, each.text)
        (root / _MAIN).write_bytes(whole.schema.text.encode("utf-8", "replace"))
        # Run elsewhere and with -P, so that Python does not import a schema named json.py.
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{directory}", "--include_imports"]
        try:
            done = subprocess.run(
                [*command, f"--descriptor_set_out={root / _COMPILED}", str(root / _MAIN)],
                capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise TransientError(
                f"protoc has not compiled the Protobuf schema in {_SECONDS} s", do="check the load of this host"
            ) from error
        if done.returncode:
            raise _failure(done.returncode, done.stderr.replace(f"{directory}/", ""))
        return ProtoFile(descriptor_pb2.FileDescriptorSet.FromString((root / _COMPILED).read_bytes()))


def _write(root: Path, name: str, text: str) -> None:
    """Write a schema to the path by which others import it. Raises `ConfigurationError` if it is none."""
    path = PurePosixPath(name)
    wrong = path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or not path.parts
    if wrong or len(name.encode("utf-8", "replace")) > _LONGEST_PATH or path.parts[0] in (_MAIN, _COMPILED):
        raise _no_path(name)
    try:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode("utf-8", "replace"))
    except (FileExistsError, IsADirectoryError, NotADirectoryError, UnicodeEncodeError):
        # The name of one is the folder of another one, or no text.
        raise _no_path(name) from None


def _no_path(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"the Protobuf schema refers to {name[:_SHOWN]!r}", do="correct the reference: its name is a path to import"
    )


def _failure(code: int, said: str) -> ConfigurationError | TransientError:
    """Return the error of a compiler that failed: of the schema only if it says so, or crashes."""
    why = " ".join(said.replace(_MAIN, "line").split())[:_SHOWN]
    if code in (-signal.SIGSEGV, -signal.SIGABRT):
        why = why or f"protoc ends with {signal.Signals(-code).name}"
    elif not any(line.startswith(f"{_MAIN}:") for line in said.splitlines()):
        return TransientError(
            "protoc did not run", why=why or f"its exit code is {code}", do="check memory and disk of this host"
        )
    return ConfigurationError(
        "the Protobuf schema cannot be compiled", why=why, do="correct the schema, or its references"
    )


def message_class(descriptor: Any) -> Any:
    """Return the class of the messages of a descriptor."""
    return message_factory.GetMessageClass(descriptor)


def is_map(field: Any) -> bool:
    """Whether a field is a map."""
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _named(messages: Any, package: str) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield full name and positions of messages and those inside of them, with and without the entries of maps."""
    without = 0
    for index, each in enumerate(messages):
        if each.options.map_entry:
            continue
        name = _full(package, each.name)
        yield name, [index], [without]
        for inner, first, second in _named(each.nested_type, name):
            yield inner, [index, *first], [without, *second]
        without += 1


def _full(package: str, name: str) -> str:
    return f"{package}.{name}" if package else name


def _content(file: Any) -> bytes:
    """Return what a file declares, in an order of its own."""
    made = descriptor_pb2.FileDescriptorProto()
    made.CopyFrom(file)
    made.name = ""
    made.ClearField("options")
    _sort(made.message_type)
    made.enum_type.sort(key=lambda each: each.name)
    made.dependency.sort()
    return bytes(made.SerializeToString(deterministic=True))


def _sort(messages: Any) -> None:
    messages.sort(key=lambda each: each.name)
    for each in messages:
        each.field.sort(key=lambda field: field.number)
        each.enum_type.sort(key=lambda enum: enum.name)
        _sort(each.nested_type)


def protobuf_of(columns: Sequence[pa.Field], name: str, before: Any | None) -> Schema:
    """Return the schema of columns, as a message of this full name.

    A field keeps the number that it has in `before`, the descriptor of the last version if there is one. A new one gets
    the next number, and the numbers of those that are gone stay reserved, since readers know fields by number only.
    Nullable columns are `optional`. Raises `ConfigurationError` for a type that Protobuf does not have, or a name that
    is invalid there.
    """
    package, _, short = name.rpartition(".")
    imports: set[str] = set()
    lines = _message(columns, short, before, imports, "")
    head = ['syntax = "proto3";', *([f"package {package};"] if package else [])]
    text = "\n".join([*head, *(f'import "{each}";' for each in sorted(imports)), *lines]) + "\n"
    schema = Schema(text, "PROTOBUF")
    compiled(WholeSchema(schema))
    return schema


def _message(columns: Sequence[pa.Field], name: str, before: Any | None, imports: set[str], path: str) -> list[str]:
    known = {} if before is None else {field.name: field for field in before.fields}
    taken, gone = _taken(before)
    inner: list[str] = []
    fields: list[str] = []
    for column in columns:
        where = f"{path}{column.name}"
        check_field_name(column.name, where, "a Protobuf message")
        if column.name in known:
            number = known[column.name].number
        else:
            number = taken = _next(taken)
        kind, nested = _kind(column, where, f"{name}_{column.name}", known.get(column.name), imports)
        inner += nested
        fields.append(f"{kind} {column.name} = {number};")
    names = {column.name for column in columns}
    left = {field.name: field.number for field in known.values() if field.name not in names}
    reserved = [f"reserved {each};" for each in (*gone[0], *left.values())]
    reserved += [f'reserved "{each}";' for each in (*gone[1], *left) if each not in names]
    return [f"message {name} {{", *(f"  {line}" for line in (*inner, *reserved, *fields)), "}"]


def _taken(before: Any | None) -> tuple[int, tuple[list[str], list[str]]]:
    """Return the largest number in use, and what is reserved: numbers or ranges, and names."""
    if before is None:
        return 0, ([], [])
    made = descriptor_pb2.DescriptorProto()
    before.CopyToProto(made)
    ranges = [(each.start, each.end - 1) for each in made.reserved_range]
    largest = max([0, *(field.number for field in made.field), *(last for _, last in ranges)])
    return largest, ([f"{first} to {last}" for first, last in ranges], list(made.reserved_name))


def _next(taken: int) -> int:
    return _TAKEN.stop if taken + 1 in _TAKEN else taken + 1


def _kind(column: pa.Field, path: str, inner: str, before: Any | None, imports: set[str]) -> tuple[str, list[str]]:
    """Return the type of a field with its label, and the lines of the message that it needs."""
    kind, types = column.type, pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        name, lines = _single(kind.value_type, f"{path}.element", inner, before, imports)
        return f"repeated {name}", lines
    if types.is_map(kind):
        entry = None if before is None or not is_map(before) else before.message_type.fields_by_name["value"]
        key = _SCALARS.get(_plain(kind.key_type))
        if key not in ("string", "bool", "int32", "int64"):
            refuse(
                "Protobuf", kind, path, "keys of its maps are strings, integers or booleans", "cast the keys to strings"
            )
        name, lines = _single(kind.item_type, f"{path}.value", inner, entry, imports)
        return f"map<{key}, {name}>", lines
    name, lines = _single(kind, path, inner, before, imports)
    # Messages can always be absent.
    optional = column.nullable and not lines and "." not in name
    return f"optional {name}" if optional else name, lines


def _single(kind: Any, path: str, inner: str, before: Any | None, imports: set[str]) -> tuple[str, list[str]]:
    if pa.types.is_struct(kind):
        known = None if before is None else before.message_type
        return inner, _message(
            [kind.field(index) for index in range(kind.num_fields)], inner, known, imports, f"{path}."
        )
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        imports.add("google/protobuf/timestamp.proto")
        return TIMESTAMP, []
    if pa.types.is_duration(kind):
        imports.add("google/protobuf/duration.proto")
        return DURATION, []
    found = _SCALARS.get(_plain(kind))
    if found is None:
        nested = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)
        do = "put the inner array or map into a struct" if nested else "cast it to a string, or drop it"
        refuse("Protobuf", kind, path, "Protobuf has no such type", do)
    return str(found), []


def _plain(kind: Any) -> Any:
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


_SCALARS: dict[Any, str] = {
    pa.bool_(): "bool", pa.int8(): "int32", pa.int16(): "int32", pa.int32(): "int32", pa.int64(): "int64",
    pa.float32(): "float", pa.float64(): "double", pa.string(): "string", pa.binary(): "bytes",
}  # fmt: skip
