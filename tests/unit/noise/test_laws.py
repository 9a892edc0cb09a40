"""The noise laws: the tables, and draws from them."""

import random
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
from hashlib import sha256
from itertools import pairwise
from math import floor

import pytest
from scipy.stats import chisquare

from kanon.gate.mechanism.parameters import PROFILES, profile
from kanon.noise.exact import exp_bounds
from kanon.noise.laws import Law, one_sided, two_sided
from kanon.noise.words import TOTAL

FALSE_ALARM = 1e-6
"""Probability with which a correct table fails a chi-square test of its draws."""

DIGESTS = {
    ("balanced", 24): "4c8027e7faf3e3c834811130b90d6487725925435d1f8314c05662e2f7077173",
    ("balanced", 168): "739e0b77674745975513c6560080d75971e2643d2b05cee067bc21c65b1ba70c",
    ("balanced", 720): "abb2a076d1b97e3006c5e8e9c935aff2d9e65b12a586feed365db5bf0f75c482",
    ("balanced-2", 24): "af45c1bf20e628e42a2b746fb2ea07b6e6b4a8f0b6e67e552209393491e3404d",
    ("balanced-2", 168): "3481ee23afda2acf3c33bf229064d26c60ff464fa2fa907739543869bf913324",
    ("balanced-2", 720): "c8e76a50877b88aad67795fac282c51ef03d7b5a50cff577d8017f6731dc7200",
    ("sharp-2", 24): "07e2d1666b940e1637c7f1d5f38ec4cba159dc0f95971db2263fd6b3c6374fb1",
    ("sharp-2", 168): "46032de97b3ad067e42a83ddf185e5715e7f61c1d8097ddddddcc9ac22079b7c",
    ("sharp-2", 720): "c7ee4807fdda9988e957680981493d32a91110275b7887609ed22bf5c19ebbaf",
    ("crossing", 24): "c9b94d83310d8c77ae7fe42f9faf03a6290437755e31214d937062d6884be49c",
    ("crossing", 168): "9cbc10b045b8c6db7851e192cacef50835e36b39466965af6b5c53c9c269a6cd",
    ("crossing", 720): "f50402914542ecd0efa419337a345e575929147c7a47dc345ce39d1aa6a2a182",
    ("returning", 24): "3a35768479cab3ec709856cc137d2b169a0b393f530e5857f4a36316100c0366",
    ("returning", 168): "9fd160062b01e185427f6aff93bd8c803a102cf342d705cdb1f5ded0a5007f31",
    ("returning", 720): "7cb8c05e59de2b1bc39bc4d84391c2d45ab5ee4f9ab421d368172ade9fc22f48",
    ("published", 24): "c722d759fa4c6726bb35bdc337c55869271d989d9fb17064880df720aca4240e",
    ("published", 168): "c722d759fa4c6726bb35bdc337c55869271d989d9fb17064880df720aca4240e",
    ("published", 720): "c722d759fa4c6726bb35bdc337c55869271d989d9fb17064880df720aca4240e",
    ("sharp", 24): "0b4084ef45cf21748621f6d96cf208505ec6f024835cd2e32da3acc16be73517",
    ("sharp", 168): "5d900253cf07bdc193b7e1b59fa7168aeca0f4332bcceb4297855701adbd32d5",
    ("sharp", 720): "d4e5b8208b80be4b8345b669559b7f6f71ae24286af207a96d4469f966c36a37",
}
"""SHA-256 of the digests of both tables: a changed one is another mechanism and another type."""

SHIPPED = sorted(
    {law for window in (24, 168, 720) for name in PROFILES for law in profile(name, window)},
    key=lambda law: (law.shape, law.epsilon, law.truncation),
)


def label(law: Law) -> str:
    return f"{law.shape} {float(law.epsilon):g} {law.truncation}"


each_shipped_law = pytest.mark.parametrize("law", SHIPPED, ids=label)


def ideal(law: Law, x: int, digits: int = 80) -> Decimal:
    """The probability the table rounds, in decimal arithmetic that shares nothing with the code."""
    with localcontext(prec=digits):
        epsilon = Decimal(law.epsilon.numerator) / Decimal(law.epsilon.denominator)
        total = sum((-epsilon * abs(y)).exp() for y in range(law.min, law.max + 1))
        return (-epsilon * abs(x)).exp() / total


@pytest.mark.parametrize("window", [24, 168, 720])
@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_tables_of_a_profile_are_pinned(name: str, window: int) -> None:
    tables = "".join(law.digest for law in profile(name, window))
    assert sha256(tables.encode()).hexdigest() == DIGESTS[name, window]


RATES = {
    "published": ("0.75", "0.75"),
    "balanced": ("1", "1"),
    "balanced-2": ("1", "1"),
    "sharp": ("0.9", "1.2"),
    "sharp-2": ("0.9", "1.2"),
    "crossing": ("1.62", "1.38"),
    "returning": ("1.5", "1.5"),
}
"""The epsilon of each profile's threshold and query noise, as the documentation gives them."""


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_noise_of_a_profile_decreases_at_the_rate_of_its_epsilon(name: str) -> None:
    for law, epsilon in zip(profile(name, 24), RATES[name], strict=True):
        low, high = exp_bounds(Fraction(epsilon))
        for x in range(2, law.max + 1):  # both weights are rounded down by less than 1
            assert -high < law.weight(x) * low - law.weight(x - 1)
            assert law.weight(x) * high - law.weight(x - 1) < 1


@each_shipped_law
def test_the_weights_are_positive_and_sum_to_2_to_the_64(law: Law) -> None:
    assert sum(law.weights) == 1 << 64
    assert min(law.weights) > 0
    assert law.max - law.min + 1 == len(law.weights)


@each_shipped_law
def test_every_weight_except_that_of_zero_is_rounded_down(law: Law) -> None:
    for x in range(law.min, law.max + 1):
        if x != 0:
            assert law.weight(x) == floor(ideal(law, x) * TOTAL)
    assert 0 <= law.weight(0) - floor(ideal(law, 0) * TOTAL) < len(law.weights)


@each_shipped_law
def test_draws_have_the_law_of_the_table(law: Law) -> None:
    draw = random.Random(f"draws of {label(law)}")
    number = 100_000
    seen = Counter(law.draw(draw.getrandbits(64)) for _ in range(number))
    cells = [x for x in range(law.min, law.max + 1) if number * law.probability(x) >= 10]
    rest = number - sum(seen[x] for x in cells)
    observed = [*(seen[x] for x in cells), rest]
    expected = [float(number * law.probability(x)) for x in cells]
    assert chisquare(observed, [*expected, number - sum(expected)]).pvalue > FALSE_ALARM


@each_shipped_law
def test_a_word_maps_to_the_first_outcome_whose_cumulative_weight_exceeds_it(law: Law) -> None:
    assert law.draw(0) == law.min
    assert law.draw(TOTAL - 1) == law.max
    for i, boundary in enumerate(law.cumulative[:-1]):
        assert law.draw(boundary - 1) == law.min + i
        assert law.draw(boundary) == law.min + i + 1


def test_the_number_of_words_of_an_outcome_equals_its_weight() -> None:
    law = one_sided(Fraction(1), 5)
    bounds = [0, *law.cumulative]
    assert [high - low for low, high in pairwise(bounds)] == list(law.weights)


@pytest.mark.parametrize(
    ("epsilon", "truncation", "message"),
    [
        (Fraction(1, 2000), 5, "the epsilon of a noise distribution must lie between 0.001 and 20"),
        (Fraction(21), 5, "the epsilon of a noise distribution must lie between 0.001 and 20"),
        (Fraction(1), 0, "the truncation of a noise distribution must lie between 1 and 10000, not 0"),
        (Fraction(1), 10_001, "the truncation of a noise distribution must lie between 1 and 10000, not 10001"),
    ],
)
def test_a_noise_distribution_that_does_not_fit_a_table_is_refused(
    epsilon: Fraction, truncation: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        two_sided(epsilon, truncation)


def test_the_message_about_a_too_wide_law_names_a_truncation_that_works() -> None:
    with pytest.raises(ValueError, match=r"truncation 50 is too large for epsilon 1: .* use at most 43"):
        two_sided(Fraction(1), 50)
    assert two_sided(Fraction(1), 43).min == -43
    with pytest.raises(ValueError, match="use at most 43"):
        two_sided(Fraction(1), 44)


@pytest.mark.parametrize("x", ["0", "0.000001", "0.3", "0.75", "1", "1.2", "2.25", "7.5", "42", "300"])
def test_exp_bounds_enclose_the_exponential_narrowly(x: str) -> None:
    low, high = exp_bounds(Fraction(x))
    with localcontext(prec=300):
        exact = Decimal(x).exp()
        below = Decimal(low.numerator) / Decimal(low.denominator)
        above = Decimal(high.numerator) / Decimal(high.denominator)
        assert below <= exact <= above
        assert (above - below) / exact < Decimal(2) ** -230


def test_exp_bounds_refuse_negative_numbers() -> None:
    with pytest.raises(ValueError, match="use the reciprocal"):
        exp_bounds(Fraction(-1))


@pytest.mark.parametrize(("truncation", "delta"), [(25, 2.57807080803740e-9), (24, 5.45777597158488e-9)])
def test_the_delta_of_a_draw_is_the_closed_form_to_a_relative_1e_8(truncation: int, delta: float) -> None:
    law = two_sided(Fraction(3, 4), truncation)
    assert float(law.shift_delta) == pytest.approx(delta, rel=1e-8)
    assert float(law.tail_delta) == pytest.approx(delta, rel=1e-8)


@each_shipped_law
def test_the_deltas_of_a_law_equal_their_definition(law: Law) -> None:
    with localcontext(prec=80):
        e = Decimal(str(float(law.epsilon))).exp()

        def weight(x: int) -> Decimal:
            return Decimal(law.weight(x)) / TOTAL

        def tail(a: int) -> Decimal:
            return sum((weight(x) for x in range(max(a, law.min), law.max + 1)), Decimal(0))

        span = range(law.min - 2, law.max + 3)
        shift = sum((max(Decimal(0), weight(u) - e * weight(u + 1)) for u in span), Decimal(0))
        tails = max(tail(a) - e * tail(a + 1) for a in span)
    assert float(law.shift_delta) == pytest.approx(float(shift), rel=1e-13)
    assert float(law.tail_delta) == pytest.approx(float(tails), rel=1e-13)
    # Rounded up: never below the definition.
    for reached, exact in ((law.shift_delta, shift), (law.tail_delta, tails)):
        assert reached >= Fraction(exact) - Fraction(1, 10**60)
