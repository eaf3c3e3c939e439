"""Which tests are run on which versions of Envoy."""

from __future__ import annotations

from typing import NamedTuple

from ext_proc.bootstrap.options import PROFILES
from ext_proc.bootstrap.versions import NEWEST, OLDEST


class Suite(NamedTuple):
    """Tests that are run on Envoys.

    Attributes:
        name: what the table calls it.
        files: what pytest is given.
        profile: of the Envoys of tests that do not say another.
        everywhere: whether versions between the oldest and the newest run it as well.
    """

    name: str
    files: tuple[str, ...]
    profile: str = "lean"
    everywhere: bool = True


# The longest first, so that none of them is left over in the end. The profiles' own tests already send requests with
# each profile to each version: what else there is to send need not go to all of them.
SUITES = (
    *(
        Suite(name, ("tests/wire/test_requests.py", "tests/wire/test_answers.py"), name, everywhere=name == "lean")
        for name in sorted(PROFILES, key="lean".__eq__)
    ),
    Suite("configuration", ("tests/unit/bootstrap",)),
    Suite("profiles", ("tests/wire/test_profiles.py",)),
    Suite("gateways", ("tests/wire/duplex/test_shapes.py", "tests/wire/duplex/test_duplex.py")),
    Suite("up", ("tests/local/test_up.py::test_the_pasted_line_gets_an_answer",)),
)


def belongs(suite: Suite, version: str, *, whole: bool) -> bool:
    """Tell whether a version runs a suite; `whole` has each run all."""
    return whole or suite.everywhere or version in {OLDEST, NEWEST}
