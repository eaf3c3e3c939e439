"""`make test-image`: the files that the image copies, its own install lines in a fresh environment, its command.

With `--base IMAGE` the image itself, where buildah and bubblewrap are: `python -m tests.image --base python:3.11-slim`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.image.built import build_and_start
from tests.unit.deploy.dockerfile import DOCKERFILE, ROOT, copied, stages, texts, vector

CONFIG = "listen: ['unix:{folder}/s']\npools: {{chat: {{kubernetes: {{namespace: a, service: b}}}}}}\n"


def main() -> int:
    """Build and try; returns 0 if all went well."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", metavar="IMAGE", help="build the image on this one, and start it")
    parser.add_argument("--mount", metavar="PATH", action="append", default=[], help="what the build may read besides")
    arguments = parser.parse_args()
    if arguments.base is not None:
        with tempfile.TemporaryDirectory(prefix="kvpicker-image-") as name:
            Path(name).chmod(0o755)
            build_and_start(arguments.base, arguments.mount, Path(name))
        print("1 passed, 0 failed: the image starts as its user, and writes nothing")
        return 0
    return _install()


def _install() -> int:
    """Do what the build does, without one; returns 0 if all went well."""
    _, build, final = stages(DOCKERFILE.read_text("utf-8"))
    with tempfile.TemporaryDirectory(prefix="kvpicker-image-") as name:
        folder = Path(name)
        source, installed = folder / "src", folder / "opt"
        source.mkdir()
        for names, target in copied(build):
            for each in names:
                _copy(ROOT / each, source / target / each if target.endswith("/") else source / target)
        for line in texts(build, "RUN"):
            _run(line.replace("/opt/kvpicker", str(installed)).replace("python -m", f"{sys.executable} -m"), source)
        (entry,) = vector(final, "ENTRYPOINT")
        config = folder / "kvpicker.yaml"
        config.write_text(CONFIG.format(folder=folder))
        for words in ("--version", f"check {config}", "envoy-config --profile istio --output /dev/null"):
            _run(f"{installed}/bin/{entry} {words}", folder)
        size = sum(file.stat().st_size for file in installed.rglob("*") if file.is_file())
    print(f"1 passed, 0 failed: {size / 2**20:.0f} MiB installed")
    return 0


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _run(line: str, folder: Path) -> None:
    print(f"+ {line}", flush=True)
    subprocess.run(["sh", "-c", line], cwd=folder, check=True)


if __name__ == "__main__":
    sys.exit(main())
