"""The demo's picture."""

from collections import Counter
from pathlib import Path

import pytest
from matplotlib import image

from kanon.cli.picture import certainty, draw, near_threshold
from kanon.cli.replay import Result
from kanon.mechanism.parameters import Parameters, profile


def parameters(name: str, window: int) -> Parameters:
    threshold_law, query_law = profile(name, window)
    return Parameters(50, window, 3600, threshold_law, query_law)


@pytest.mark.parametrize("name", ["published", "balanced", "sharp"])
def test_the_noise_decides_between_the_certain_counts(name: str) -> None:
    p = parameters(name, 168)
    low, high = certainty(p)
    assert p.never_true_below <= low < p.k < high <= p.surely_true_from
    tighter = certainty(p, confidence=0.9)
    assert low <= tighter[0] < p.k < tighter[1] <= high


def test_the_edges_have_the_confidence_they_claim() -> None:
    p = parameters("published", 24)
    low, high = certainty(p)

    def tail(value: int) -> float:
        return sum(float(p.query_law.probability(x)) for x in range(value, p.query_law.max + 1))

    def ever(count: int, steps: int) -> float:
        outcomes = range(p.threshold_law.min, p.threshold_law.max + 1)
        return sum(float(p.threshold_law.probability(u)) * (1 - (1 - tail(p.k + u - count)) ** steps) for u in outcomes)

    assert ever(low, 24) <= 0.01 < ever(low + 1, 24)
    assert ever(high - 1, 1) < 0.99 <= ever(high, 1)


@pytest.fixture
def result() -> Result:
    """Sets that rise to a peak and fall again, true from some count on; one is far from the threshold."""
    made = Result(k=50, window=168, period=3600, start=1_700_000_000)
    peaks = {"early": (55, 45), "late": (60, 55), "never": (44, 99), "small": (5, 99), "huge": (500, 40)}
    peaks["again"] = (52, 46)
    seen: set[str] = set()
    for step in range(472_000, 472_200):
        ramp = 1 - abs(step - 472_100) / 100
        counts = Counter({name: int(peak * ramp) for name, (peak, _) in peaks.items()})
        seen |= {name for name, count in counts.items() if count >= peaks[name][1]}
        restarted = {"again"} if step >= 472_150 else set()
        made.note(step, counts, seen - restarted)
    return made


def test_sets_near_the_threshold_with_different_stories_are_chosen(result: Result) -> None:
    assert near_threshold(result, 35, 57) == ["again", "early", "late", "never"]


def test_the_picture_is_drawn(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "new" / "demo.png"
    draw(result, parameters("published", 168), "title", path)
    pixels = image.imread(path)
    assert pixels.shape[0] > 600
    assert pixels.shape[1] > 1000
    assert pixels.std() > 0.05  # not blank


def test_a_log_of_one_set_is_drawn_too(tmp_path: Path) -> None:
    made = Result(k=50, window=168, period=3600, start=0)
    made.note(1, Counter(only=1), set())
    draw(made, parameters("published", 168), "title", tmp_path / "demo.png")
    assert (tmp_path / "demo.png").exists()
