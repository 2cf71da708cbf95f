"""Use an installed outfall where there is no checkout: `nox -s wheel` runs this in an empty environment.

Without arguments it imports every module that was installed and runs a sink on the local engine. With `--spark` it also
writes through both APIs.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path


def installed_modules() -> list[str]:
    """Return the modules of the distribution, from its own list: a namespace cannot be walked."""
    files = importlib.metadata.files("outfall") or []
    paths = [file.with_suffix("") for file in files if file.suffix == ".py"]
    modules = [".".join(path.parent.parts if path.name == "__init__" else path.parts) for path in paths]
    if not modules:
        sys.exit("the installed distribution lists no module: is it an editable install?")
    return sorted(modules)


def import_all(*, with_spark: bool) -> None:
    """Import each module; one that needs an extra may say so, in an error that names it.

    A base that sinks share may lack what their extras bring: they say so before it is imported.
    """
    entries = importlib.metadata.distribution("outfall").entry_points
    own = {".".join(entry.module.split(".")[:2]) for entry in entries}
    for name in installed_modules():
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            missing_extra = "pip install 'outfall[" in str(error) and not (with_spark and "outfall[spark" in str(error))
            of_base = not any(f"{name}.".startswith(f"{package}.") for package in own)
            if not missing_extra and not (of_base and error.name and not error.name.startswith("outfall")):
                raise
            print(f"{name}: {error}")
            continue
        file = Path(module.__file__ or "")
        assert file.is_relative_to(sys.prefix), f"{name} comes from {file}, not from the wheel"


def write_without_spark() -> None:
    """Run one epoch of the file sink, with nothing installed that no extra asked for."""
    from outfall.file import FileSink
    from outfall.testing import LocalDriver

    driver = LocalDriver(FileSink(str(Path("local").absolute()), parts=2), str(Path("local-log").absolute()))
    driver.run_epoch(0, [[("a", {"id": 0}), ("b", {"id": 1})], [("a", {"id": 2})]])
    check_ids("local", 3)


def check_entry_points() -> None:
    """Find each sink that the wheel registers; one that needs an extra may say so."""
    from outfall import plugins
    from outfall.source_options import build_sink
    from outfall.version import outfall_version

    assert importlib.metadata.version("outfall") == outfall_version()
    assert set(plugins.names(plugins.SINKS)) >= {"file", "fanout"}
    for group in (plugins.SINKS, plugins.WRAPPERS, plugins.RECOVERY):
        for name in plugins.names(group):
            try:
                assert plugins.find(group, name) is not None
            except ImportError as error:
                if "pip install 'outfall[" not in str(error):
                    raise
    named = build_sink("fanout", {"a.sink": "file", "a.path": str(Path("named").absolute()), "a.batch_size": "7"})
    assert list(named.children()) == ["a"]


def check_ids(directory: str, rows: int) -> None:
    """Check that a directory holds each id below `rows` once."""
    files = [path for path in Path(directory).glob("[!_.]*") if path.is_file()]
    ids = [json.loads(line)["id"] for path in files for line in path.read_text().splitlines()]
    assert sorted(ids) == list(range(rows)), f"{directory} holds {sorted(ids)}"


def write_with_spark() -> None:
    """Write ten rows with a sink object, ten with options, and read both back."""
    assert importlib.util.find_spec("pandas") is None, "this would not show that pandas is never needed"
    # Spark starts the first python3 on the PATH otherwise.
    os.environ["PYSPARK_PYTHON"] = sys.executable

    from pyspark.sql import SparkSession

    from outfall.file import FileSink
    from outfall.spark import write

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        rows = spark.range(10)
        write(rows, FileSink(str(Path("objects").absolute())))
        log = str(Path("log").absolute())
        options = {"sink": "file", "path": str(Path("options").absolute()), "recovery": log, "epoch": "0"}
        rows.write.format("outfall").options(**options).mode("append").save()
    finally:
        spark.stop()
    check_ids("objects", 10)
    check_ids("options", 10)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--spark", action="store_true")
    arguments = parser.parse_args()
    import_all(with_spark=arguments.spark)
    check_entry_points()
    if arguments.spark:
        write_with_spark()
    else:
        write_without_spark()
    print("the installed wheel works")
