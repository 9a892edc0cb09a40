"""The guarantee in words: every number is rounded up."""

from fractions import Fraction

from kanon.noise.bound import Bound
from kanon.reports.job import of_all, of_both, with_gate


def test_epsilon_and_delta_are_rounded_up():
    text = " ".join(of_all(Fraction("10.000041"), Fraction("1.2345641e-8")))
    assert "epsilon = 10.0001)" in text
    assert "a probability of 1.23457e-08 (delta)" in text
    assert "An epsilon of 10.0001 protects nobody" in text


def test_the_belief_is_bounded_except_with_probability_delta():
    assert "afterwards, except with that probability." in of_all(Fraction(1), Fraction("1e-8"))[0]
    assert of_all(Fraction(1), Fraction(0))[0].endswith("% sure of it afterwards.")


SPENT, JOIN = Bound(Fraction(4), Fraction(0)), Bound(Fraction("2.25"), Fraction("1.2345641e-7"))


def test_released_keys_add_what_each_join_costs_in_the_gate():
    assert with_gate(SPENT, JOIN) == Bound(Fraction("6.25"), JOIN.delta)
    assert with_gate(Bound(Fraction(4), Fraction("1e-8")), JOIN, 3) == Bound(
        Fraction("10.75"), 3 * JOIN.delta + Fraction("1e-8")
    )


def test_the_sum_of_summaries_and_gate_is_rounded_up():
    parts, change, rest = of_both("all summaries", SPENT, JOIN, 3)
    assert "also caused 3 joins, each in another set" in parts
    assert "epsilon 10.75 = 4 + 3 x 2.25, delta 3.7037e-07 = 0 + 3 x 1.23457e-07" in parts
    assert "epsilon = 10.75), except with a probability of 3.7037e-07 (delta)" in change
    assert "Each further join costs the gate's part once more." in rest
    assert "also caused a join, the parts" in of_both("this summary", SPENT, JOIN)[0]
