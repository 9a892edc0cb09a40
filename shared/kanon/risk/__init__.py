"""Privacy risks of a log before it is collected or published: sketches, estimates, attacks.

    from kanon import risk
    made = risk.sketch(Path("joins.csv"), "set")

Needs the extra ``release``. No part of this runs in the service, which keeps no sketch of users.
"""

from kanon.risk.sketching import sketch

__all__ = ["sketch"]
