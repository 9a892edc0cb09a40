"""Statistics of a log or table, published once, with a privacy guarantee for all rows of a user.

    from kanon.release import Ledger, Spec, release
    made = release("joins.csv", Spec(groups=("set",), epsilon=Fraction(1), delta=Fraction("1e-6")),
                   Ledger.at("kanon-ledger"), dataset="joins")

Needs the extra ``desk``. No part of this runs in the service.
"""

from kanon.release.ledger import Ledger
from kanon.release.releasing import Release, release
from kanon.release.spec import Spec

__all__ = ["Ledger", "Release", "Spec", "release"]
