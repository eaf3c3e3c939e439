"""Until when certificates are valid is read from them, whatever stands around them."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from ext_proc.sources.certificate_dates import Validity, validity
from tests.certificates import Authority

KEY = ec.generate_private_key(ec.SECP256R1())
NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "n" * 60)])
TIMES = st.integers(-600_000_000, 9_000_000_000).map(lambda seconds: dt.datetime.fromtimestamp(seconds, dt.UTC))


def made(begin: dt.datetime, end: dt.datetime) -> bytes:
    """Make a certificate that is valid from one time to another."""
    builder = x509.CertificateBuilder(NAME, NAME, KEY.public_key(), x509.random_serial_number(), begin, end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@given(st.tuples(TIMES, TIMES).map(sorted))
def test_times_are_those_of_the_certificate(times: list[dt.datetime]) -> None:
    """In both notations, which differ from 2050 on."""
    begin, end = times
    assert validity(made(begin, end)) == Validity(begin, end)


def test_the_one_of_a_chain_that_ends_first_counts() -> None:
    """Without it the others prove nothing."""
    authority = Authority()
    hour = dt.timedelta(hours=1)
    short, long = authority.issue("short", left=hour).certificate, authority.issue("long").certificate
    assert validity(long + b"notes\n" + short) == validity(short)


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"garbage",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----",
        Authority().certificate.replace(b"M", b"x"),
    ],
)
def test_what_is_no_certificate_says_nothing(pem: bytes) -> None:
    """It is not for this to complain."""
    assert validity(pem) is None


def test_what_is_left_is_a_share() -> None:
    """Nothing once it is over, all before it begins."""
    noon, hour = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC), dt.timedelta(hours=1)
    valid = Validity(noon, noon + 4 * hour)
    assert [valid.share_left(noon + hours * hour) for hours in (-1, 0, 3, 4, 9)] == [1.0, 1.0, 0.25, 0.0, 0.0]
