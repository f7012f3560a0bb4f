"""How long messages waited, as a histogram: few numbers that can be added, and percentiles of them.

Buckets grow with the time, four to each doubling, so that a percentile is off by an eighth at most,
be it of milliseconds or of days. Written so that SQL can do it, too: bucket `n` holds waits from
`bucket_start_ms(n)` up to `bucket_start_ms(n + 1)`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

BUCKETS_MAX: Final = 160  # up to some decades; what waits longer is in the last one


def wait_bucket(wait_ms: int) -> int:
    if wait_ms < 8:
        return max(wait_ms, 0)  # clocks of two machines may differ: nothing waits less than that
    shift = wait_ms.bit_length() - 3
    return min(4 * shift + (wait_ms >> shift), BUCKETS_MAX - 1)


def bucket_start_ms(bucket: int) -> int:
    if bucket < 8:
        return bucket
    return (4 + bucket % 4) << (bucket // 4 - 1)


def count_waits(waits_ms: Iterable[int]) -> tuple[int, ...]:
    """The histogram of some waits: no longer than the longest of them needs."""
    counts: list[int] = []
    for wait_ms in waits_ms:
        bucket = wait_bucket(wait_ms)
        while bucket >= len(counts):
            counts.append(0)
        counts[bucket] += 1
    return tuple(counts)


def add_waits(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    if len(one) < len(other):
        one, other = other, one
    return (*(a + b for a, b in zip(one, other, strict=False)), *one[len(other) :])


def percentile_ms(waits: Sequence[int], fraction: float) -> int | None:
    """What that part of the messages has waited at most, to the middle of a bucket."""
    sums = list(accumulate(waits))
    if not sums or not sums[-1]:
        return None
    bucket = bisect_left(sums, max(fraction * sums[-1], 1))
    return (bucket_start_ms(bucket) + bucket_start_ms(bucket + 1) - 1) // 2
