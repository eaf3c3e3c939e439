"""Files that commands write: whole or not at all."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest

from ext_proc.core.errors import ConfigError
from ext_proc.ops.whole_file import whole_file

OLD, NEW = "what stood there", "<!DOCTYPE html>"


def test_a_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    """Until then the old one stands; its rights stay, and nothing is left beside."""
    path = tmp_path / "report.html"
    path.write_text(OLD)
    path.chmod(0o640)
    with whole_file(path, [], "--html") as write:
        write(NEW)
        assert path.read_text() == OLD
    assert path.read_text() == NEW
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_usual_rights(tmp_path: Path) -> None:
    """Those that any file has that is made beside it."""
    with whole_file(tmp_path / "report.html", [], "--html") as write:
        write(NEW)
    (tmp_path / "other").touch()
    assert (tmp_path / "report.html").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("error", [ConfigError, KeyboardInterrupt])
def test_a_failure_leaves_everything_as_it_was(tmp_path: Path, error: type[BaseException]) -> None:
    """Whether something went wrong or the user has had enough."""
    path = tmp_path / "report.html"
    path.write_text(OLD)

    def fail() -> None:
        with whole_file(path, [], "--html") as write:
            write(NEW)
            raise error("enough")

    with pytest.raises(error):
        fail()
    assert path.read_text() == OLD
    assert list(tmp_path.iterdir()) == [path]


def test_a_block_that_writes_nothing_leaves_no_file(tmp_path: Path) -> None:
    """There was nothing to put there."""
    with whole_file(tmp_path / "report.html", [], "--html"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("link", [None, Path.symlink_to, Path.hardlink_to])
def test_what_is_read_is_not_written(tmp_path: Path, link: object) -> None:
    """Whatever name it is given."""
    read = tmp_path / "trace.jsonl"
    read.write_text(OLD)
    path = tmp_path / "x" / ".." / "trace.jsonl"
    (tmp_path / "x").mkdir()
    if callable(link):
        path = tmp_path / "link"
        link(path, read)
    with (
        pytest.raises(ConfigError, match=r"--html: .* is what is read; give another file"),
        whole_file(path, ["elsewhere", str(read)], "--html"),
    ):
        pass
    assert read.read_text() == OLD


def test_standard_input_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file is behind it; what is none has no file to spoil."""
    read = tmp_path / "trace.jsonl"
    read.write_text(OLD)
    with read.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        with pytest.raises(ConfigError, match="is what is read"), whole_file(read, ["-"], "--html"):
            pass
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with whole_file(read, ["-"], "--html") as write:
        write(NEW)
    assert read.read_text() == NEW


@pytest.mark.parametrize("place", ["no/report.html", ".", "file/report.html"])
def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path, place: str) -> None:
    """Before the block begins."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"--html: .*; give --html a file that can be written"),
        whole_file(tmp_path / place, [], "--html"),
    ):
        pytest.fail("the block began")


def test_a_link_leads_to_the_file(tmp_path: Path) -> None:
    """It stays a link."""
    link, path = tmp_path / "latest", tmp_path / "report.html"
    link.symlink_to(path)
    with whole_file(link, [], "--html") as write:
        write(NEW)
    assert link.is_symlink()
    assert path.read_text() == NEW


def test_a_pipe_is_written_as_it_is(tmp_path: Path) -> None:
    """Nothing can take its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()))
    reader.start()
    with whole_file(pipe, [], "--html") as write:
        write(NEW)
    reader.join()
    assert pipe.is_fifo()
    assert got == [NEW]


def test_no_file_takes_any_text() -> None:
    """The caller need not ask whether one was wanted."""
    with whole_file(None, [], "--html") as write:
        write(NEW)
