"""Progress on terminals and elsewhere."""

from __future__ import annotations

import io

import pytest

from ext_proc.local.steps import Steps, console


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_elsewhere_each_step_is_two_plain_lines() -> None:
    """One when it begins and one when it is done, without control characters."""
    output = io.StringIO()
    with Steps(console(output)).step("starting"):
        assert output.getvalue() == "starting …\n"
    assert output.getvalue() == "starting …\nstarting: done in 0.0 s\n"


def test_on_a_terminal_a_step_ends_as_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spinner turns meanwhile."""
    monkeypatch.setenv("TERM", "xterm")
    output = Terminal()
    with Steps(console(output)).step("starting"):
        pass
    assert output.getvalue().endswith("starting: done in 0.0 s\n")
    assert "\x1b[" in output.getvalue()


def test_a_failed_step_is_never_called_done() -> None:
    """The error speaks for itself."""
    output = io.StringIO()
    with pytest.raises(KeyError), Steps(console(output)).step("starting"):
        raise KeyError
    assert "done" not in output.getvalue()


def test_long_lines_are_not_broken() -> None:
    """What is printed can be copied."""
    output = io.StringIO()
    Steps(console(output)).say("[bold] :smile: " + "x" * 500)
    assert output.getvalue() == "[bold] :smile: " + "x" * 500 + "\n"
