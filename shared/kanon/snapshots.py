"""A start from a snapshot (Lambda SnapStart): the work before it is taken, and after each restore.

All environments of a version begin as copies of one process. So nothing that must be fresh, or differ between them, may
exist before the snapshot: no secret, no AWS client with its credentials and connections, no random state. The functions
make all of these at their first request. Time is read at each request.
"""

import random
from collections.abc import Callable


def on_snapshot(prepare: Callable[[], None]) -> None:
    """Have ``prepare`` run before a snapshot, and draw a new random state after each restore.

    The runtime brings the hooks from Python 3.12 on, and calls them only with SnapStart.
    """
    try:
        import snapshot_restore_py as hooks
    except ModuleNotFoundError:
        return
    hooks.register_before_snapshot(prepare)
    hooks.register_after_restore(random.seed)  # for different pauses between attempts
