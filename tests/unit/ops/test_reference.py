"""The generated tables."""

import subprocess
import sys

from ext_proc.ops.reference import reference


def test_the_tables_can_be_printed() -> None:
    """Running the module prints the tables of events and metrics for the documentation."""
    command = [sys.executable, "-W", "error", "-m", "ext_proc.ops.reference"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed == reference()
    assert "`request_finished`" in printed
    assert "`kvpicker_requests_total`" in printed
