"""The image itself: built by buildah, started by bubblewrap as a cluster does: as its user, with nothing to write."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.unit.deploy.dockerfile import DOCKERFILE, ROOT

TAG = "localhost/kvpicker:test"
START_S = 60.0
CONFIG = """
listen: ["127.0.0.1:0"]
admin: {{listen: "127.0.0.1:{port}"}}
tls: {{}}
drain_s: 0
scrape: {{enabled: false}}
pools: {{chat: {{models: [m], endpoints: ["127.0.0.1:9"]}}}}
"""


def build_and_start(base: str, mounts: Sequence[str], folder: Path) -> None:
    """Build on a base image, start what came of it, and end it; raises if anything goes wrong.

    Args:
        base: what the Dockerfile's argument PYTHON is set to.
        mounts: paths that the build may read, such as the settings of pip.
        folder: for what the container reads.
    """
    with _mounted(base, mounts) as (config, root):
        written = subprocess.run([*_sandbox(config, root, folder), "touch", "/opt/x"], check=False, capture_output=True)
        if b"Read-only file system" not in written.stderr:
            raise AssertionError("the file system can be written")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "kvpicker.yaml").write_text(CONFIG.format(port=port))
        command = [*_sandbox(config, root, folder), *config["Entrypoint"], "serve", "/tmp/config/kvpicker.yaml"]  # noqa: S108  in there
        with subprocess.Popen(command) as process:
            try:
                _wait_until_ready(port, process)
            finally:
                for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
                    os.kill(int(child), signal.SIGTERM)
            if process.wait(START_S):
                raise AssertionError(f"it ended with {process.returncode}")


@contextmanager
def _mounted(base: str, mounts: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Build, and yield the image's settings and the folder that its files are in."""
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore")
    volumes = [word for path in mounts for word in ("--volume", f"{path}:{path}:ro")]
    options = ["--file", str(DOCKERFILE), "--ignorefile", str(ignored), "--tag", TAG, "--build-arg", f"PYTHON={base}"]
    subprocess.run(["buildah", "build", "--network", "host", *options, *volumes, str(ROOT)], check=True)
    container = _said("buildah", "from", TAG)
    try:
        config: dict[str, Any] = json.loads(_said("buildah", "inspect", container))["OCIv1"]["config"]
        yield config, _said("buildah", "mount", container)
    finally:
        subprocess.run(["buildah", "rm", container], check=True, capture_output=True)


def _sandbox(config: dict[str, Any], root: str, folder: Path) -> list[str]:
    uid, _, gid = config["User"].partition(":")
    settings = [word for pair in config["Env"] for word in ("--setenv", *pair.split("=", 1))]
    files = ["--ro-bind", root, "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]  # noqa: S108  in there
    files += ["--ro-bind", str(folder), "/tmp/config"]  # noqa: S108  in there
    user = ["--unshare-user", "--uid", uid, "--gid", gid or uid, "--cap-drop", "ALL"]
    return ["bwrap", *files, *user, "--clearenv", *settings, "--chdir", config["WorkingDir"], "--die-with-parent"]


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError):
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError("it was never ready")
        time.sleep(0.1)


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
