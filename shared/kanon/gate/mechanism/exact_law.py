"""The exact distribution (law) of the first crossing in an instance, for any sequence of counts, and over spans.

An instance of w steps has only w + 1 outcomes, "crosses at step j" for j < w and "never", so nothing needs
simulation: ``P(j) = sum_u p1(u) prod_{i<j} P(nu < k+u-c_i) P(nu >= k+u-c_j)``, with p1 the threshold law and c_i
the count at step i. The absolute error is below 1e-14.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kanon.gate.mechanism.parameters import Parameters
from kanon.noise.laws import Law
from kanon.noise.words import TOTAL

Floats = NDArray[np.float64]

_GRID = 2.0**40
"""Coarse parts of logarithms are multiples of 1 / _GRID: sums of them are exact up to 2^13."""
_LOG_ZERO = -1024.0
"""Stands for log 0: its exponential underflows to exactly 0."""


@dataclass(frozen=True)
class _Tails:
    """``P(nu >= a)`` and ``log P(nu < a)`` for ``a = lowest ..``, the logarithm as coarse + fine part.

    The first and the last entry hold the values below and above the table.
    """

    lowest: int
    reached: Floats
    coarse: Floats
    fine: Floats


@lru_cache(maxsize=64)
def _tails(law: Law) -> _Tails:
    below = (0, *law.cumulative)
    reached = np.array([(TOTAL - b) / TOTAL for b in below])
    log_below = np.array([_log(b) for b in below])
    coarse = np.round(log_below * _GRID) / _GRID
    return _Tails(law.min, reached, coarse, log_below - coarse)


def _log(words: int) -> float:
    """``log(words / 2**64)``. The quotient of two integers is the nearest float."""
    if words == 0:
        return _LOG_ZERO
    return math.log1p(-((TOTAL - words) / TOTAL)) if 2 * words > TOTAL else math.log(words / TOTAL)


@lru_cache(maxsize=64)
def _threshold(law: Law) -> tuple[NDArray[np.int64], Floats]:
    outcomes = np.arange(law.min, law.max + 1)
    return outcomes, np.array([weight / TOTAL for weight in law.weights])


def _entries(parameters: Parameters, counts: ArrayLike) -> NDArray[np.int64]:
    """Where the tails have what crosses at these counts with each outcome of the threshold noise, (outcomes, ...)."""
    tails, (outcomes, _) = _tails(parameters.query_law), _threshold(parameters.threshold_law)
    at = np.asarray(counts, np.int64)
    needed = parameters.k + outcomes.reshape(-1, *([1] * at.ndim)) - at
    entries: NDArray[np.int64] = np.clip(needed - tails.lowest, 0, len(tails.reached) - 1)
    return entries


def first_crossing(parameters: Parameters, counts: ArrayLike) -> Floats:
    """The distribution of the first crossing.

    Args:
        parameters: the constants of the type; its window is not used.
        counts: integers of shape ``(..., n)``, the count at each step of the instance.

    Returns:
        Probabilities of shape ``(..., n + 1)``: entry j < n of crossing at step j, entry n of never.
    """
    _, weights = _threshold(parameters.threshold_law)
    law: Floats = np.tensordot(weights, given_threshold(parameters, counts), axes=1)
    return law


def given_threshold(parameters: Parameters, counts: ArrayLike) -> Floats:
    """:func:`first_crossing` given each outcome of the threshold noise, shape ``(outcomes, ..., n + 1)``."""
    tails, entry = _tails(parameters.query_law), _entries(parameters, counts)
    law = np.empty((*entry.shape[:-1], entry.shape[-1] + 1))
    law[..., 0] = 1.0
    np.add(np.cumsum(tails.coarse[entry], axis=-1), np.cumsum(tails.fine[entry], axis=-1), out=law[..., 1:])
    np.exp(law[..., 1:], out=law[..., 1:])  # law[..., j] is now the probability of no crossing before j
    law[..., :-1] *= tails.reached[entry]
    return law


def never_at_constant(parameters: Parameters, counts: ArrayLike, steps: ArrayLike) -> Floats:
    """The probability that a set with a constant count does not cross in ``steps`` steps of an instance.

    Args:
        parameters: the constants of the type; its window is not used.
        counts: integers of any shape.
        steps: numbers of steps, of a shape that broadcasts with ``counts``.
    """
    tails, (_, weights) = _tails(parameters.query_law), _threshold(parameters.threshold_law)
    count, number = np.broadcast_arrays(np.asarray(counts, np.int64), np.asarray(steps, np.float64))
    entry = _entries(parameters, count)
    law: Floats = np.tensordot(weights, np.exp(number * tails.coarse[entry] + number * tails.fine[entry]), axes=1)
    return law


@dataclass(frozen=True)
class Span:
    """The counts of a set over consecutive steps, numbered from 0; before them nobody joined it.

    Attributes:
        steps: their number.
        counts_since: the count at each step, (steps,), of the joins from a given step on. A search that begins again
            counts no others; on a grid every join counts, so only ``counts_since(0)`` is asked.
        begun: the steps between the beginning of the epoch or instance that contains step 0, and step 0.
    """

    steps: int
    counts_since: Callable[[int], ArrayLike]
    begun: int = 0


@dataclass(frozen=True)
class SpanLaw:
    """What happens at each step of a span, over all its searches.

    Attributes:
        first: the probability that the first crossing is at the step; the last entry is never, (steps + 1,).
        crosses: the probability that the set crosses at the step, (steps,).
        true: the probability that it is true there, (steps,).
    """

    first: Floats
    crosses: Floats
    true: Floats


def over_span(parameters: Parameters, span: Span) -> SpanLaw:
    """The law of a span with any counts, over searches, holds and epochs (or instances).

    A crossing at j decides which search follows, and its noise is new. So the crossings are a sum over the last one
    before each (:func:`next_crossing`).
    """
    first = next_crossing(parameters, span)
    crosses, true = first[:-1].copy(), np.zeros(span.steps)
    for j in range(span.steps):
        if crosses[j] > 0:
            crosses += crosses[j] * next_crossing(parameters, span, j)[:-1]
            true[j : _next_search(parameters, span, j)] += crosses[j]
    return SpanLaw(first, crosses, true)


def next_crossing(parameters: Parameters, span: Span, after: int | None = None) -> Floats:
    """The law of the first crossing in a span, or of the next one given one at the step ``after``; the last is never.

    Silent searches follow each other, one for each epoch or instance. Shape (steps + 1,).
    """
    grid = parameters.restart is None
    first, since = (0, 0) if after is None else (_next_search(parameters, span, after), after + 1)
    law, alive = np.zeros(span.steps + 1), 1.0
    while first < span.steps:
        ends = min(_end_of_cycle(parameters, span, first), span.steps)
        found = first_crossing(parameters, np.asarray(span.counts_since(0 if grid else since))[first:ends])
        law[first:ends] = alive * found[:-1]
        alive *= float(found[-1])
        first = since = ends
    law[-1] = alive
    return law


def _next_search(parameters: Parameters, span: Span, crossing: int) -> int:
    """The first step of the search after a crossing; until then the set is true."""
    restart = parameters.restart
    return _end_of_cycle(parameters, span, crossing) if restart is None else crossing + restart.hold


def _end_of_cycle(parameters: Parameters, span: Span, step: int) -> int:
    """The first step of the epoch or instance after the one that contains ``step``."""
    return ((step + span.begun) // parameters.cycle + 1) * parameters.cycle - span.begun


def false_after_silence(parameters: Parameters, count: int, higher: int) -> float:
    """The probability that a set is false at the last step of an instance or epoch, at which it rises to ``higher``.

    It has kept ``count`` since the beginning. Its searches are summed up: each begins one hold after a crossing. With
    X for the step from one beginning to the next, ``1 + X + X^2 + ... = (1 + X)(1 + X^2)(1 + X^4) ...``
    """
    restart = parameters.restart
    length, hold = (parameters.window,) * 2 if restart is None else (restart.epoch, restart.hold)
    tails, (_, weights) = _tails(parameters.query_law), _threshold(parameters.threshold_law)
    entry, steps = _entries(parameters, count), np.arange(length)[:, None]
    silent = weights * np.exp(steps * tails.coarse[entry] + steps * tails.fine[entry])
    crosses = silent @ tails.reached[entry]  # [n]: at step n of a search
    misses = silent @ (1 - tails.reached[_entries(parameters, higher)])  # [n]: at its step n, after n silent ones
    begins, later = np.zeros(length), np.zeros(length)  # [n]: a search begins at step n; n steps after another one
    begins[0] = 1.0
    later[hold:] = crosses[: length - hold]
    while hold < length:
        begins, later, hold = begins + _convolved(begins, later), _convolved(later, later), 2 * hold
    return float(begins @ misses[::-1])


def _convolved(a: Floats, b: Floats) -> Floats:
    """The first entries of the convolution, as many as ``a`` has. Powers of two are quick to transform."""
    size = 1 << (2 * len(a) - 1).bit_length()
    found: Floats = np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size), size)[: len(a)]
    return found
