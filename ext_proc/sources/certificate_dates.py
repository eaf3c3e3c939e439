"""Reads until when certificates are valid."""

from __future__ import annotations

import datetime as dt
import re
import ssl
from typing import Final, NamedTuple

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_BEFORE_VALIDITY: Final = 3
"""Serial number, algorithm and issuer, behind the version, which may be left out (RFC 5280, section 4.1)."""

_PIVOT: Final = b"50"
"""Two digits from here on are of the last century (RFC 5280, section 4.1.2.5.1)."""


class Validity(NamedTuple):
    """From when until when certificates are valid, UTC."""

    begin: dt.datetime
    end: dt.datetime

    def share_left(self, now: dt.datetime) -> float:
        """Return how much of the time is left, in [0, 1]."""
        whole = max(self.end - self.begin, dt.timedelta(seconds=1))
        return min(max((self.end - now) / whole, 0.0), 1.0)


def validity(pem: bytes) -> Validity | None:
    """Return when the one of some certificates is valid that ends first; None where that cannot be read."""
    try:
        found = [_validity(found.group()) for found in _CERTIFICATE.finditer(pem)]
    except (ValueError, IndexError):
        return None
    return min(found, key=lambda one: one.end, default=None)


def _validity(pem: bytes) -> Validity:
    der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
    _, at, _ = _element(der, 0)  # Certificate
    _, at, _ = _element(der, at)  # TBSCertificate
    if der[at] == _VERSION:
        _, _, at = _element(der, at)
    for _ in range(_BEFORE_VALIDITY):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)  # Validity
    begin, at = _time(der, at)
    end, _ = _time(der, at)
    return Validity(begin, end)


def _time(der: bytes, at: int) -> tuple[dt.datetime, int]:
    tag, begin, end = _element(der, at)
    text = der[begin:end]
    if tag == _UTC_TIME:
        text = (b"19" if text >= _PIVOT else b"20") + text
    return dt.datetime.strptime(text.decode("ascii"), "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC), end


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of an element of DER, and where its content begins and ends."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length & 0x80:  # the length of the length
        begin += length & 0x7F
        length = int.from_bytes(der[at + 2 : begin], "big")
    return tag, begin, begin + length
