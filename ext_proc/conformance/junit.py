"""Writes results as JUnit XML, which every CI system reads."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence

from ext_proc.conformance.suite import Result, Verdict


def document(target: str, results: Sequence[Result], *, strict: bool = False) -> bytes:
    """Write one suite; a SHOULD that is not met counts as skipped, unless `strict` says that it must be."""
    failures = sum(result.breaks(strict=strict) for result in results)
    passed = sum(result.verdict is Verdict.PASSED for result in results)
    suite = ET.Element(
        "testsuite",
        name="kvpicker conformance",
        hostname=target,
        tests=str(len(results)),
        failures=str(failures),
        errors="0",
        skipped=str(len(results) - passed - failures),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        _add(suite, result, strict=strict)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode").encode() + b"\n"


def _add(suite: ET.Element, result: Result, *, strict: bool) -> None:
    check = result.check
    case = ET.SubElement(
        suite,
        "testcase",
        classname=f"conformance.{check.id.partition('.')[0]}",
        name=f"{check.id}[{result.mode}]",
        time=f"{result.seconds:.3f}",
    )
    if result.verdict is Verdict.PASSED:
        ET.SubElement(case, "system-out").text = result.evidence
    elif result.breaks(strict=strict):
        failure = ET.SubElement(case, "failure", message=result.evidence, type=check.level.value)
        failure.text = f"required: {check.requirement} ({check.source})"
    else:
        why = "not met (SHOULD): " if result.verdict is Verdict.FAILED else ""
        ET.SubElement(case, "skipped", message=f"{why}{result.evidence}")
