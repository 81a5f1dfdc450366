"""Presets, hooks and data files are found from a checkout, from an editable install and from a wheel."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOOK = """
import json
import nvrun
from nvrun import shipped
names = {name: sorted(str(path.relative_to(shipped.folder(name))) for path in shipped.folder(name).rglob("*.*")
                      if "__pycache__" not in path.parts) for name in ("presets", "hooks")}
print(json.dumps([nvrun.__file__, names]))
"""


def files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)) for path in found}


def run(folders: Iterable[Path], prelude: str = "") -> tuple[Path, dict[str, list[str]]]:
    """Where nvrun comes from and what it ships, with only `folders` and the installed dependencies in reach.

    Without `site`, so that the install under which these tests run is not found.
    """
    path = [
        *map(str, folders),
        sysconfig.get_path("purelib"),
        *(entry for entry in sys.path if "site-packages" in entry),
    ]
    code = f"import sys; sys.path[1:1] = {path!r}\n{prelude}\n{LOOK}"
    argv = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd="/")
    origin, names = json.loads(done.stdout)
    return Path(origin), names


def built(kind: str, into: Path) -> Path:
    """A wheel or an editable wheel of the checkout, unpacked as pip would."""
    pytest.importorskip("hatchling")
    code = f"import sys; from hatchling.build import {kind}; print({kind}(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(into)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = into.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(into / "site")
    return into / "site"


SHIPPED = {name: sorted(file for file in files(ROOT / name) if "." in Path(file).name) for name in ("presets", "hooks")}


def test_checkout() -> None:
    origin, names = run([ROOT])
    assert origin == ROOT / "nvrun/__init__.py"
    assert names == SHIPPED
    assert SHIPPED["presets"]
    assert SHIPPED["hooks"]


def test_wheel(tmp_path: Path) -> None:
    site = built("build_wheel", tmp_path)
    origin, names = run([site])
    assert origin == site / "nvrun/__init__.py"
    assert names == SHIPPED
    assert files(site / "nvrun") - {
        f"_shipped/{name}/{file}" for name in SHIPPED for file in files(ROOT / name)
    } == files(ROOT / "nvrun")
    (metadata,) = site.glob("*.dist-info")
    assert "nvrun = nvrun.__main__:main" in (metadata / "entry_points.txt").read_text()
    assert {path.name for path in site.iterdir()} == {"nvrun", metadata.name}, "nothing but the package is installed"


def test_editable(tmp_path: Path) -> None:
    site = built("build_editable", tmp_path)
    origin, names = run([], prelude=f"import site; site.addsitedir({str(site)!r})")
    assert origin == ROOT / "nvrun/__init__.py"
    assert names == SHIPPED
