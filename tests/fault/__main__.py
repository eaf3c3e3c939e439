"""Runs every fault and prints a table; the last line is one JSON object."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable, Sequence

from tests.fault.catalogue import FAULTS, with_leavers
from tests.fault.ledger import ClientLedger
from tests.fault.steps import LEAVERS
from tests.fault.trial import Fault, Row, as_json, run_fault

COLUMNS = ("requests", "right", "failed", "repeated", "altered", "hung", "cut", "elsewhere", "leaked", "noticed")
COLUMNS += ("avoided", "back")
SUMMED = ("requests", "answered", "failed", "cut", "cut_elsewhere", "hung", "altered", "repeated")


def main() -> int:
    """Run the faults whose names hold a word of `--only`, or all; return 1 if a requirement was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="WORDS", help="run faults whose name has these words")
    parser.add_argument("--verbose", action="store_true", help="say why requests failed")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="faults that run at one time, each apart")
    parser.add_argument("--leavers", type=int, default=LEAVERS, metavar="N", help="clients that leave, where some do")
    arguments = parser.parse_args()
    faults = with_leavers(FAULTS, arguments.leavers)
    chosen = [one for one in faults if not arguments.only or any(words in one.name for words in arguments.only)]
    began = time.monotonic()
    rows = asyncio.run(_run(chosen, arguments.at_once, verbose=arguments.verbose))
    print(json.dumps({**summary(rows), "seconds": round(time.monotonic() - began)}))
    return 1 if any(row.broken for row in rows) else 0


async def _run(faults: Sequence[Fault], at_once: int, *, verbose: bool) -> list[Row]:
    print(f"| {'fault':40} | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    turns = asyncio.Semaphore(at_once)

    async def run(fault: Fault) -> Row:
        async with turns:
            return await _run_one(fault, verbose=verbose)

    rows = list(await asyncio.gather(*(run(fault) for fault in faults if not fault.alone)))
    return rows + [await run(fault) for fault in faults if fault.alone]


async def _run_one(fault: Fault, *, verbose: bool) -> Row:
    begun = time.monotonic()
    try:
        row = await run_fault(fault)
    except Exception as error:  # noqa: BLE001  the others are to be run all the same
        row = Row(fault=fault.name, account=ClientLedger().settle((), ""), broken=(repr(error),))
    told = [line(row), *(f"  broken: {broken}" for broken in row.broken)]
    if verbose:
        told.append(f"  {time.monotonic() - begun:.0f} s; expired {row.expired}; {dict(row.account.reasons)}")
    print("\n".join(told), flush=True)
    return row


def line(row: Row) -> str:
    """Write a row of the table."""
    of = row.account
    counts = (of.requests, of.answered, of.failed, of.repeated, of.altered, of.hung, of.cut, of.cut_elsewhere)
    values = [*map(str, counts), str(row.leaked)]
    values += map(_seconds, (row.noticed, row.avoided, row.readmitted))
    return f"| {row.fault:40} | {' | '.join(v.rjust(len(c)) for v, c in zip(values, COLUMNS, strict=True))} |"


def summary(rows: Iterable[Row]) -> dict[str, object]:
    """Add the rows up."""
    rows = list(rows)
    sums = {name: sum(getattr(row.account, name) for row in rows) for name in SUMMED}
    return {
        "faults": len(rows),
        **sums,
        "leaked_leases": sum(row.leaked for row in rows),
        "broken": {row.fault: row.broken for row in rows if row.broken},
        "rows": [as_json(row) for row in rows],
    }


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
