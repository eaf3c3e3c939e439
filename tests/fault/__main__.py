"""Runs every fault and prints a table; the last line is one JSON object."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable, Sequence

from tests.fault.catalogue import FAULTS
from tests.fault.trial import Fault, Row, as_json, run_fault

COLUMNS = ("requests", "right", "failed", "repeated", "altered", "hung", "cut", "elsewhere", "leaked", "noticed")
COLUMNS += ("avoided", "back")
SUMMED = ("requests", "answered", "failed", "cut", "cut_elsewhere", "hung", "altered", "repeated")


def main() -> int:
    """Run the faults whose names hold a word of `--only`, or all; return 1 if a requirement was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="WORDS", help="run faults whose name has these words")
    parser.add_argument("--verbose", action="store_true", help="say why requests failed")
    arguments = parser.parse_args()
    chosen = [one for one in FAULTS if not arguments.only or any(words in one.name for words in arguments.only)]
    rows = asyncio.run(_run(chosen, verbose=arguments.verbose))
    print(json.dumps(summary(rows)))
    return 1 if any(row.broken for row in rows) else 0


async def _run(faults: Sequence[Fault], *, verbose: bool) -> list[Row]:
    print(f"| {'fault':40} | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    rows = []
    for fault in faults:
        begun = time.monotonic()
        rows.append(await run_fault(fault))
        print(line(rows[-1]), flush=True)
        for broken in rows[-1].broken:
            print(f"  broken: {broken}", flush=True)
        if verbose:
            took = time.monotonic() - begun
            print(f"  {took:.0f} s; expired {rows[-1].expired}; {dict(rows[-1].account.reasons)}", flush=True)
    return rows


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
