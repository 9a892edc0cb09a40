"""The guarantee in words: every number is rounded up."""

from fractions import Fraction

from kanon.reports.job import of_all


def test_epsilon_and_delta_are_rounded_up():
    text = " ".join(of_all(Fraction("10.000041"), Fraction("1.2345641e-8")))
    assert "epsilon = 10.0001)" in text
    assert "a probability of 1.23457e-08 (delta)" in text
    assert "An epsilon of 10.0001 protects nobody" in text


def test_the_belief_is_bounded_except_with_probability_delta():
    assert "afterwards, except with that probability." in of_all(Fraction(1), Fraction("1e-8"))[0]
    assert of_all(Fraction(1), Fraction(0))[0].endswith("% sure of it afterwards.")
