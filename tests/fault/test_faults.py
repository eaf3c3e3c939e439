"""The most telling faults of the suite, one after the other on one stand; `make faults` runs them all."""

from __future__ import annotations

import functools

import msgspec
import pytest

from tests.fault.catalogue import FAULTS
from tests.fault.stand import Plan, running_stand, settled
from tests.fault.steps import LEAVERS_SHORT, leave
from tests.fault.trial import Fault, Trial
from tests.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]


def shortened(fault: Fault) -> Fault:
    """Have fewer clients leave."""
    if fault.traffic is None:
        return fault
    return msgspec.structs.replace(fault, traffic=functools.partial(leave, count=LEAVERS_SHORT))


async def test_nothing_is_lost() -> None:
    """Every request has one answer, none is repeated, altered or left hanging, and no lease is left over."""
    async with running_stand(Plan()) as stand:
        for fault in map(shortened, FAULTS):
            if fault.short is None:
                continue
            row = await Trial(fault, stand).run(fault.short)
            assert row.broken == (), row
            if fault.traffic is not None:
                assert row.account.left == LEAVERS_SHORT
            await until(lambda: settled(stand))
