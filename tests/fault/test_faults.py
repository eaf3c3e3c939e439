"""The most telling faults of the suite, one after the other on one stand; `make faults` runs them all."""

from __future__ import annotations

import pytest

from tests.fault.catalogue import FAULTS, with_leavers
from tests.fault.stand import Plan, running_stand, settled
from tests.fault.steps import LEAVERS_SHORT
from tests.fault.trial import Trial
from tests.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(180)]


async def test_nothing_is_lost() -> None:
    """Every request has one answer, none is repeated, altered or left hanging, and no lease is left over."""
    async with running_stand(Plan()) as stand:
        for fault in with_leavers(FAULTS, LEAVERS_SHORT):
            if fault.short is None:
                continue
            row = await Trial(fault, stand).run(fault.short)
            assert row.broken == (), row
            if fault.traffic is not None:
                assert row.account.left == LEAVERS_SHORT
            await until(lambda: settled(stand))
