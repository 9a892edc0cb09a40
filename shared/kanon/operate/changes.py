"""Operators' changes by step: those that an evaluation from an earlier step would not repeat.

Control keeps one attribute for each: the command, and the last step that it may affect.
"""

from collections.abc import Mapping

from kanon.errors import KanonError
from kanon.gate.fingerprints import missing_layouts, missing_noise_keys
from kanon.gate.storage.control import Control
from kanon.operate.stacks import RunningStack

OWNER = "operate"
SKIP, REPAIR, RETIRE = "skip", "repair", "retire"


class ChangeRefusedError(KanonError):
    """Nothing was changed; the message says why."""


def record_change(control: Control, what: str, step: int) -> None:
    """Record a change before it is made. ``step`` is the last step that it may affect."""
    control.check(OWNER, {f"{what} {step}": "done"})


def changed_fingerprints(recorded: Mapping[str, str], current: Mapping[str, str]) -> list[str]:
    """The names of the fingerprints that differ from the recorded ones."""
    return [name for name, value in current.items() if recorded.get(name, value) != value]


def refuse_rolled_back(stack: RunningStack) -> None:
    """Check that the stack is configured with everything in force: a rollback leaves entries out.

    Raises:
        ChangeRefusedError: it lacks an entry.
    """
    recorded, settings = stack.control.recorded("evaluate"), stack.evaluate
    if missing_layouts(recorded, settings.layouts) or missing_noise_keys(recorded, settings.noise_keys):
        raise ChangeRefusedError(
            "an entry of Slots or NoiseKeys is recorded and not configured, because a deployment was rolled back:"
            " deploy it again first; `kanon doctor` shows the value"
        )


def newest_change(control: Control) -> tuple[int, str] | None:
    """The last step that a change may affect, and the command; None if nothing was changed."""
    changes = [name.split() for name in control.recorded(OWNER)]
    return max(((int(step), what) for what, step in changes), default=None)


def step_in_progress(stack: RunningStack) -> int:
    """The newest step that a worker may have begun: the one after the largest mark."""
    return 1 + max((mark or 0 for mark in stack.marks.values()), default=0)
