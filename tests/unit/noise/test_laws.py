"""The noise laws: the tables, and draws from them."""

import random
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction
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

# lowest outcome and weights, SHA-256: a changed digest is another mechanism and another type.
DIGESTS = {
    ("balanced", 24): (
        "e5b15404f1aac57c3065d3cadd9c26c170bddfcb85668cde096c2891d078d23c",
        "fa571b49f059297e481e4bbcea5c28d5a07db181eb071fd3679cf742bca48086",
    ),
    ("balanced", 168): (
        "e5b15404f1aac57c3065d3cadd9c26c170bddfcb85668cde096c2891d078d23c",
        "50a45530eb3eb0664ea54146ad9ef1963648fb17fbb964954eac66e810272d93",
    ),
    ("balanced", 720): (
        "bc084317c8c18923d2a7855b3b08ba6e0825a62a80abe7c07ed26f320556a3bb",
        "d25271c81cef6ad195c6d2f969ed8c2b4dd5e38135cde401c4bbcd32252c7ac0",
    ),
    ("balanced-2", 24): (
        "d25271c81cef6ad195c6d2f969ed8c2b4dd5e38135cde401c4bbcd32252c7ac0",
        "fa571b49f059297e481e4bbcea5c28d5a07db181eb071fd3679cf742bca48086",
    ),
    ("balanced-2", 168): (
        "9a5f46df19810da255ae4b1ec01724c29e0772ed5d0aebaa3875d41f3348ab76",
        "50a45530eb3eb0664ea54146ad9ef1963648fb17fbb964954eac66e810272d93",
    ),
    ("balanced-2", 720): (
        "fa571b49f059297e481e4bbcea5c28d5a07db181eb071fd3679cf742bca48086",
        "d25271c81cef6ad195c6d2f969ed8c2b4dd5e38135cde401c4bbcd32252c7ac0",
    ),
    ("sharp-2", 24): (
        "7aa862144edd2f32ed6dca7d9b01ab853901afeec41c0a22c96938db6ada26d9",
        "af7eb2e6af4dd081f1a91ca382aba98b004217256babf11f531f27688c581b19",
    ),
    ("sharp-2", 168): (
        "bf0aa12efcb26959f1120711fbe60430fca88b6603c0241c45774821b9f61c60",
        "ede429aa65993aab02287a3d2db72560b9ba98317fa578fa04132c1bd7993cc1",
    ),
    ("sharp-2", 720): (
        "2007883cccaff031ebe913d763b47fdeb6af43fffdc429a7d6dae7c18cb8a137",
        "ecc2ead0e27c123c1f12ca0a7cbb4a4feb0a0a49fe883a5b12f9ff28ae8b194d",
    ),
    ("crossing", 24): (
        "201dbe76d21fbe0e84e288b13e37a7872846d1ab6449d4f143fb27dba5f88d8a",
        "8ab59b79f5ea491e13216187d2c18d4c0342e4f0a1a5220512a3e8348f01cf4e",
    ),
    ("crossing", 168): (
        "201dbe76d21fbe0e84e288b13e37a7872846d1ab6449d4f143fb27dba5f88d8a",
        "2bc0616ff24b8fe2ef5a6fd5d2198d631a82c894eb6bf1ede8bb7c0275fa7593",
    ),
    ("crossing", 720): (
        "8919a6f3fdc4595f71b1b6c4ab853fd31d8ab930a1f1f8d26412918192542bcf",
        "2bc0616ff24b8fe2ef5a6fd5d2198d631a82c894eb6bf1ede8bb7c0275fa7593",
    ),
    ("returning", 24): (
        "08481c8fd7a176412ea84e2b46cdcf19e53e80ef3c2c2589f5640699e41ad28d",
        "0a53713431568c1596f09c7042f9b1047b985eebf05185b30689e59bf70cd1f3",
    ),
    ("returning", 168): (
        "282fddc07fdb9f7f0941bfc2318e790356ef8cce251ca6bab55a1d8ab463c4e1",
        "ad3954d93554493582a7df6b93befb123f900aca7cb6f6b5e84f80ee460a2481",
    ),
    ("returning", 720): (
        "be9bc614fd67914dd8f59a5c9123d1bc2802e41e19cded706c4349acfc99b4b4",
        "ad3954d93554493582a7df6b93befb123f900aca7cb6f6b5e84f80ee460a2481",
    ),
    ("published", 24): (
        "7f51f4b4d147aff64098646a95c279acadd0314f5f5470be2f88845947096863",
        "e54679da5ac122ab552de5cc4115084fd842bc7712de381c6f5694fc38af53f2",
    ),
    ("published", 168): (
        "7f51f4b4d147aff64098646a95c279acadd0314f5f5470be2f88845947096863",
        "e54679da5ac122ab552de5cc4115084fd842bc7712de381c6f5694fc38af53f2",
    ),
    ("published", 720): (
        "7f51f4b4d147aff64098646a95c279acadd0314f5f5470be2f88845947096863",
        "e54679da5ac122ab552de5cc4115084fd842bc7712de381c6f5694fc38af53f2",
    ),
    ("sharp", 24): (
        "bed802459a2b565cbfc99fe5ea4e31fdcd5eb1207607800db49d0a5d0c5b257c",
        "af7eb2e6af4dd081f1a91ca382aba98b004217256babf11f531f27688c581b19",
    ),
    ("sharp", 168): (
        "bed802459a2b565cbfc99fe5ea4e31fdcd5eb1207607800db49d0a5d0c5b257c",
        "ede429aa65993aab02287a3d2db72560b9ba98317fa578fa04132c1bd7993cc1",
    ),
    ("sharp", 720): (
        "bed802459a2b565cbfc99fe5ea4e31fdcd5eb1207607800db49d0a5d0c5b257c",
        "ecc2ead0e27c123c1f12ca0a7cbb4a4feb0a0a49fe883a5b12f9ff28ae8b194d",
    ),
}

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
    assert tuple(law.digest for law in profile(name, window)) == DIGESTS[name, window]


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
def test_the_tails_are_truncated_and_not_clamped(law: Law) -> None:
    for inner, outer in ((law.max - 1, law.max), (law.min + 1, law.min)):
        if abs(outer) > abs(inner):
            fall = law.weight(outer) / law.weight(inner)
            assert fall == pytest.approx(float(ideal(law, outer) / ideal(law, inner)), rel=1e-6)
    assert law.weight(law.min - 1) == law.weight(law.max + 1) == 0


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


def test_a_two_sided_table_is_symmetric() -> None:
    law = two_sided(Fraction(3, 4), 25)
    assert law.weights == law.weights[::-1]
    assert (law.min, law.max) == (-25, 25)


def test_a_one_sided_table_begins_at_zero() -> None:
    law = one_sided(Fraction(6, 5), 14)
    assert (law.min, law.max) == (0, 14)


@pytest.mark.parametrize("epsilon", ["0.001", "0.05", "0.75", "1.2", "3"])
@pytest.mark.parametrize("shape", [one_sided, two_sided])
def test_probabilities_add_to_one_exactly(shape: type, epsilon: str) -> None:
    law = shape(Fraction(epsilon), 12)
    assert sum(law.probability(x) for x in range(law.min, law.max + 1)) == 1


@pytest.mark.parametrize(
    ("epsilon", "truncation", "message"),
    [
        (Fraction(1, 2000), 5, "the epsilon of a noise distribution must lie between 0.001 and 20"),
        (Fraction(21), 5, "the epsilon of a noise distribution must lie between 0.001 and 20"),
        (Fraction(1), 0, "the truncation of a noise distribution must lie between 1 and 10000, not 0"),
        (Fraction(1), 10_001, "the truncation of a noise distribution must lie between 1 and 10000, not 10001"),
        (Fraction(1), 50, "truncation 50 is too large for epsilon 1"),
    ],
)
def test_a_noise_distribution_that_does_not_fit_a_table_is_refused(
    epsilon: Fraction, truncation: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        two_sided(epsilon, truncation)


def test_the_message_about_a_too_wide_law_names_a_truncation_that_works() -> None:
    with pytest.raises(ValueError, match="use at most 43"):
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
