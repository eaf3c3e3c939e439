"""Names within the rendered configuration."""

from __future__ import annotations

from typing import Final

LISTENER: Final = "kvpicker_entry"

ENDPOINTS: Final = "kvpicker_endpoints"
PROCESSORS: Final = "kvpicker_processors"
ACCESS_LOG: Final = "kvpicker_access_log_{}"
