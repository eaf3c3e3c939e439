"""kvpicker passes every check, as it is configured for the profiles of gateways."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ext_proc.conformance.suite import Verdict, chosen, run_all
from ext_proc.conformance.target import Address, Target
from tests.conformance.kvpickers import ENDPOINTS, MODEL, SETTINGS, Setting, serving
from tests.conformance.trying import SETTINGS as SIZES

PATIENT = dataclasses.replace(SIZES, endpoints=ENDPOINTS, model=MODEL, patience_s=5.0, limit_s=20.0)
"""A slow answer is no fault here."""


async def unmet(where: Address, setting: Setting, *patterns: str) -> dict[str, str]:
    """Return what is not met or could not be tried, with the evidence."""
    sizes = dataclasses.replace(PATIENT, single=setting.single)
    async with Target(where, where, PATIENT.patience_s) as target:
        await target.reach()
        return {
            f"{result.check.id}[{result.mode}]": result.evidence
            for result in await run_all(target, sizes, chosen(patterns, setting.modes))
            if result.verdict is not Verdict.PASSED and (setting.single or result.check.id != "pick.single")
        }


@pytest.mark.parametrize("name", SETTINGS)
async def test_kvpicker_conforms(name: str, tmp_path: Path) -> None:
    """Everything holds on a Unix socket; by TCP, where the same code answers, what goes over the wire first."""
    setting = SETTINGS[name]
    async with serving(name, tmp_path) as (tcp, unix):
        assert await unmet(Address(where=unix), setting) == {}
        encrypted = Address(where=tcp, tls=setting.tls, insecure=setting.tls)
        assert await unmet(encrypted, setting, "health.*", "order.*", "parallel.*") == {}
