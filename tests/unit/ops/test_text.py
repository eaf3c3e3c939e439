"""Text of strangers."""

from hypothesis import given
from hypothesis import strategies as st

from ext_proc.ops.text import MAX_CHARACTERS, counted, printable


@given(st.text(st.characters()))
def test_any_text_becomes_short_printable_utf8(text: str) -> None:
    """Whatever a client sends fits a log line and a label."""
    result = printable(text)
    assert result.isprintable()
    assert len(result) <= 10 * (MAX_CHARACTERS + 1)
    assert result.encode().decode() == result


def test_usual_names_stay_as_they_are() -> None:
    """Names of models are shown as their owners write them."""
    assert printable("acme/chat-8b:läuft") == "acme/chat-8b:läuft"


def test_one_is_singular() -> None:
    """Only one."""
    assert [counted(count, "line") for count in (0, 1, 2000)] == ["0 lines", "1 line", "2,000 lines"]
