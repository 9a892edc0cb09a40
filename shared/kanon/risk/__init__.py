"""Privacy risks of a log before it is collected or published: sketches, estimates, attacks.

Needs the extra ``desk``. No part of this runs in the service, which keeps no sketch of users.
"""
