"""Faults on demand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ext_proc.sim.errors import ApiError
from ext_proc.sim.faults import NO_FAULTS, FaultBook, Faults, odd_usage, parse_header

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 1}}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("reset_before_headers", Faults(reset_before_headers=True)),
        ("reset_mid_stream;after=2", Faults(reset_after=2)),
        ("fin_mid_stream", Faults(fin_after=3)),
        ("stall;seconds=0.5", Faults(stall=0.5)),
        ("stall; seconds=1; after=0", Faults(stall=1, stall_after=0)),
        ("error_500", Faults(status=500)),
        ("busy_503;retry_after=7", Faults(status=503, retry_after=7)),
        ("status=418", Faults(status=418)),
        ("slow_start;seconds=2", Faults(slow_start=2)),
        ("usage=null", Faults(usage="null")),
        ("sse=crlf, sse=comments", Faults(sse=frozenset({"crlf", "comments"}))),
        ("error_in_stream;after=1", Faults(error_after=1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_fault_can_be_named_in_a_header(header: str, expected: Faults) -> None:
    """A header names faults with their parameters, several separated by commas."""
    assert parse_header(header) == expected


@pytest.mark.parametrize("header", ["nonsense", "usage=odd", "stall;seconds=x", "stall;seconds=-1", "sse"], ids=str)
def test_an_unknown_fault_is_refused(header: str) -> None:
    """A typing error in a fault is a 400, not a test that passes by accident."""
    with pytest.raises(ApiError) as caught:
        parse_header(header)
    assert caught.value.status == 400


def new_book() -> FaultBook:
    """A book that decides alike in every run."""
    return FaultBook(random.Random(1))


def draw(book: FaultBook, times: int, path: str = "/v1/messages", *, inference: bool = True) -> int:
    """How many of a number of requests a fault hits."""
    return sum(book.draw(path, None, inference=inference) != NO_FAULTS for _ in range(times))


def test_a_counted_fault_ends() -> None:
    """A fault with a count hits that many requests."""
    book = new_book()
    book.add({"kind": "error_500", "count": 2})
    assert draw(book, 5) == 2
    assert book.standing == []


def test_a_fault_with_a_probability_hits_its_share() -> None:
    """A fault may hit some requests only, the same ones in every run."""
    shares = []
    for _ in range(2):
        book = new_book()
        book.add({"kind": "error_500", "probability": 0.25})
        shares.append(draw(book, 400))
    assert shares[0] == shares[1]
    assert 60 < shares[0] < 140


def test_probes_and_scrapes_are_spared_unless_named() -> None:
    """A fault without a path is for inference only; one with a path is for that path."""
    book = new_book()
    book.add({"kind": "error_500"})
    assert draw(book, 1, "/health", inference=False) == 0
    book.add({"kind": "error_500", "path": "/health"})
    assert draw(book, 1, "/health", inference=False) == 1


def test_a_cleared_book_does_nothing() -> None:
    """All standing faults can be removed."""
    book = new_book()
    book.add({"kind": "stall", "seconds": 3})
    book.clear()
    assert draw(book, 3) == 0


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "x"},
        {"kind": "usage"},
        {"kind": "error_500", "count": "2"},
        {"kind": "error_500", "probability": []},
    ],
    ids=str,
)
def test_a_broken_admin_call_is_refused(data: dict[str, Any]) -> None:
    """Nothing is set up by a call that is wrong."""
    book = new_book()
    with pytest.raises(ApiError):
        book.add(data)
    assert book.standing == []


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("null", {"usage": None}),
        ("missing", {}),
        ("partial", {"usage": {"completion_tokens": 4}}),
        (
            "strings",
            {
                "usage": {
                    "prompt_tokens": "9",
                    "completion_tokens": "4",
                    "prompt_tokens_details": {"cached_tokens": "1"},
                }
            },
        ),
        (
            "negative",
            {"usage": {"prompt_tokens": -3, "completion_tokens": -3, "prompt_tokens_details": {"cached_tokens": -3}}},
        ),
        (
            "huge",
            {
                "usage": {
                    "prompt_tokens": 1e30,
                    "completion_tokens": 1e30,
                    "prompt_tokens_details": {"cached_tokens": 1e30},
                }
            },
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_odd_usage_blocks(kind: str, expected: dict[str, Any]) -> None:
    """Usage blocks that real engines and gateways have been seen to send."""
    assert odd_usage(kind, USAGE) == expected
