"""What may be told of an error: the text of our own, the type and place of any other."""

from __future__ import annotations

import traceback
from collections import deque
from typing import Final

from ext_proc.core.errors import KvpickerError
from ext_proc.ops.text import printable

FRAMES: Final = 8


def evidence(error: BaseException | None) -> dict[str, object]:
    """Return the fields of a log line that tell of an error.

    Foreign messages may quote what they choked on, and that may be a prompt or a credential.
    """
    if error is None:
        return {}
    if isinstance(error, KvpickerError):
        return {"error": type(error).__name__, "message": printable(str(error))}
    frames = deque(traceback.walk_tb(error.__traceback__), maxlen=FRAMES)
    places = [f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}" for frame, line in frames]
    return {"error": type(error).__name__, "at": places}
