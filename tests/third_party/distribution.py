"""Installs small distributions of somebody else as pip does, and shows what an executor has of them."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.documents import SOURCES

SOURCE = Path(__file__).with_name("outfall_letterbox.py")
ROOT = Path(__file__).parents[2]
ALL = {
    "outfall.sinks": {"letterbox": "outfall_letterbox:sink_from_options"},
    "outfall.recovery": {"letterbox": "outfall_letterbox:recovery_from_url"},
    "outfall.formats": {"letters": "outfall_letterbox:LettersEncoder"},
}


def install(
    directory: Path,
    *,
    name: str = "outfall-letterbox",
    entry_points: Mapping[str, Mapping[str, str]] = ALL,
    by_pip: bool = True,
) -> None:
    """Install a distribution, with the module `outfall_letterbox`, into a directory for `PYTHONPATH`.

    Without pip its wheel is unpacked, which is what pip does with it, at a hundredth of the time.
    """
    file_name = f"{name.replace('-', '_')}-1.0"
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {place}\n" for key, place in of.items())
        for group, of in entry_points.items()
    )
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "\n".join(groups),
        "RECORD": "",
    }
    directory.mkdir(exist_ok=True)
    wheel = directory / f"{file_name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(SOURCE, SOURCE.name)
        for file, text in info.items():
            archive.writestr(f"{file_name}.dist-info/{file}", text)
    if by_pip:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(directory)]
        subprocess.run([*pip, str(wheel)], check=True)
    else:
        zipfile.ZipFile(wheel).extractall(directory)
    wheel.unlink()


def copy_code_only(directory: Path) -> list[str]:
    """Bring code to a directory, as an executor may have it: Outfall, the distribution, what they need; no metadata.

    Returns:
        What `PYTHONPATH` must name, for a Python that is started with `-S`.
    """
    others = directory / "others"
    others.mkdir(parents=True)
    for packages in site.getsitepackages():
        for path in Path(packages).iterdir():
            if not path.name.lower().lstrip("_").startswith("outfall"):
                (others / path.name).symlink_to(path)
    code = directory / "code"
    for root in SOURCES:
        shutil.copytree(root, code, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCE, code)
    return [str(code), str(others)]
