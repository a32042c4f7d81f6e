"""What becomes of a sample that failed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from minato._errors import SampleError
from minato._scheduler.error_policy import FIRST_BACKOFF_S, LONGEST_BACKOFF_S, ErrorPolicy, Verdict, backoff_s


def failure(tries: int = 1) -> SampleError:
    return SampleError(5, 7, 0, 1, "fetch", tries, ValueError("bad"), "")


@pytest.mark.parametrize(("on_error", "verdict"), [("raise", Verdict.RAISE), ("skip", Verdict.SKIP)])
def test_retries_come_first(on_error: str, verdict: Verdict) -> None:
    policy = ErrorPolicy(on_error, 2)
    assert [policy.decide(failure(tries)) for tries in (1, 2, 3)] == [Verdict.RETRY, Verdict.RETRY, verdict]


@pytest.mark.parametrize("answer", ["raise", "skip", "retry"])
def test_a_function_is_given_the_failure_and_decides(answer: str) -> None:
    seen: list[SampleError] = []

    def decide(told: SampleError) -> str:
        seen.append(told)
        return answer

    told = failure()
    assert ErrorPolicy(decide, 0).decide(told) is Verdict(answer)
    assert seen == [told]


@pytest.mark.parametrize("answer", [None, "ignore", True, Verdict.SKIP])
def test_another_answer_is_refused(answer: Any) -> None:
    with pytest.raises(ValueError, match="must return 'raise', 'skip' or 'retry', got"):
        ErrorPolicy(lambda _: answer, 0).decide(failure())


def test_waits_double_up_to_a_limit() -> None:
    waits = [backoff_s(tries) for tries in range(1, 12)]
    assert waits[0] == FIRST_BACKOFF_S
    assert all(later in (2 * earlier, LONGEST_BACKOFF_S) for earlier, later in itertools.pairwise(waits))
    assert waits[-1] == backoff_s(10**9) == LONGEST_BACKOFF_S
