"""Installs a plug-in project without a network: a wheel as its build backend would make it, put in place by pip."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

_WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def install(project: Path, target: Path) -> None:
    """Build the project's wheel and have pip install it into an empty directory."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(target)]
    subprocess.run([*command, str(_wheel(project, target.parent))], check=True)


def _wheel(project: Path, folder: Path) -> Path:
    """Pack modules, metadata and entry points as the wheel format wants them; pip writes the record itself."""
    told = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    stem = f"{told['name'].replace('-', '_')}-{told['version']}"
    needs = "".join(f"Requires-Dist: {name}\n" for name in told["dependencies"])
    groups = told["entry-points"].items()
    lines = [line for group, named in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in named.items()))]
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {told['version']}\n{needs}",
        "WHEEL": _WHEEL,
        "entry_points.txt": "\n".join(lines) + "\n",
    }
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for module in project.glob("*.py"):
            archive.write(module, module.name)
        for name, text in files.items():
            archive.writestr(f"{stem}.dist-info/{name}", text)
        record = "".join(f"{name},,\n" for name in [*archive.namelist(), f"{stem}.dist-info/RECORD"])
        archive.writestr(f"{stem}.dist-info/RECORD", record)
    return wheel
