"""Retrying and hedging as pure decisions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minato.storage import (
    AccessDenied,
    ChecksumMismatch,
    EndpointUnreachable,
    HedgePolicy,
    RefusalCut,
    RetryPolicy,
    StorageError,
    Throttled,
)
from minato.storage.backend import Fetched
from minato.storage.clients import Client
from minato.storage.hedging import Hedger
from minato.storage.location import Location
from minato.storage.verify import EtagCheck


@given(st.integers(1, 60), st.floats(0, 100), st.floats(0, 1))
def test_tries_stay_within_their_number_and_budget(failures: int, elapsed_s: float, chance: float) -> None:
    policy = RetryPolicy(retries=20, backoff_s=0.1, max_backoff_s=5.0, budget_s=60.0)
    pause_s = policy.pause_s(Throttled("busy"), failures, elapsed_s, True, chance)
    if pause_s is None:
        assert failures > 20 or elapsed_s + 5.0 > 60.0
    else:
        assert 0.5 * min(5.0, 0.1 * 2 ** (failures - 1)) <= pause_s <= 5.0
        assert elapsed_s + pause_s <= 60.0


def test_only_what_may_pass_is_tried_again() -> None:
    policy = RetryPolicy()
    assert policy.pause_s(AccessDenied("no"), 1, 0.0, True, 0.5) is None
    assert policy.pause_s(StorageError("odd"), 1, 0.0, True, 0.5) is None
    down = EndpointUnreachable("down")
    assert policy.pause_s(down, 1, 0.0, False, 0.5) is not None
    assert policy.pause_s(down, 3, 0.0, False, 0.5) is None, "an endpoint that never answered is given up soon"
    assert policy.pause_s(down, 3, 0.0, True, 0.5) is not None
    refused = RefusalCut("no reason given")
    assert policy.pause_s(refused, 3, 0.0, True, 0.5) is not None
    assert policy.pause_s(refused, 4, 0.0, True, 0.5) is None, "what is refused again and again is likely gone"


@given(st.lists(st.tuples(st.floats(0.001, 2.0), st.booleans()), min_size=1, max_size=400))
def test_second_requests_never_exceed_their_share(reads: list[tuple[float, bool]]) -> None:
    hedger = Hedger(HedgePolicy(cap=0.03))
    for seconds, late in reads:
        patience_s = hedger.patience_s()
        if late or (patience_s is not None and seconds > patience_s):
            hedger.may_hedge()
        hedger.observe(seconds)
    assert hedger.hedges <= 0.03 * hedger.requests


def test_patience_follows_the_percentile_but_not_noise() -> None:
    hedger = Hedger(HedgePolicy(percentile=95))
    assert hedger.patience_s() is None, "nothing is known yet"
    for _ in range(100):
        hedger.observe(0.020)
    assert hedger.patience_s() == pytest.approx(0.030), "a half above the median where all reads take alike"
    for number in range(600):
        hedger.observe(0.5 if number % 8 == 0 else 0.020)
    assert hedger.patience_s() == pytest.approx(0.5)


MD5_OF_BODY = "841a2d689ad86bd1611447453c22c6fc"


@pytest.mark.parametrize("matched_before", [False, True])
def test_etag_that_is_no_md5_is_found_out(matched_before: bool) -> None:
    """Two equal bodies speak against the ETag, unless ETags of this bucket are known to be MD5s."""
    client = Client(backend=None, location=Location("bucket", "obstore"), etag_matched=matched_before)  # type: ignore[arg-type]
    check = EtagCheck(client, client.location, "key")
    odd = Fetched(b"body", 4, 4, "0" * 32)
    with pytest.raises(ChecksumMismatch):
        check.check(odd)
    if matched_before:
        with pytest.raises(ChecksumMismatch):
            check.check(odd)
    else:
        check.check(odd)
        assert not client.etag_trusted


def test_etag_is_compared_where_it_can_be_one() -> None:
    client = Client(backend=None, location=Location("bucket", "obstore"))  # type: ignore[arg-type]
    check = EtagCheck(client, client.location, "key")
    check.check(Fetched(b"body", 4, 4, f"{'0' * 32}-3"))
    check.check(Fetched(b"body", 4, 4, ""))
    check.check(Fetched(b"body", 4, 4, "0" * 32, checksum_verified=True))
    assert not client.etag_matched
    check.check(Fetched(b"body", 4, 4, MD5_OF_BODY))
    assert client.etag_matched
