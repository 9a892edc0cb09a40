"""Stamps: the step that Members, Statuses and the mark of a slot must agree on (docs/architecture.md, rule 13).

Evaluation completes a step in this order: all rows of its sets, the stamp of Statuses (with the horizon), the stamp of
Members, the mark. So at any moment mark <= stamp of Members <= stamp of Statuses. Anything else is a mixture of tables
of different times, and evaluation stops. The allowed states give the same answers:

- The mark is behind, or Control was emptied: evaluation continues after the mark, or after the stamp of Members. It
  skips the sets whose state is newer.
- Members are behind Statuses, and the mark with them: the steps between are evaluated again, from the same log.
"""

from collections.abc import Callable

from kanon.errors import ConfigurationError
from kanon.gate.storage.control import Mark
from kanon.gate.storage.members import Members
from kanon.gate.storage.statuses import Statuses

PAGE = "docs/guides/operate.md#tables-of-different-times"


def agreed_step(slot: int, mark: Mark, members: Members, statuses: Statuses) -> int | None:
    """The step through which a slot is evaluated; None if it never was.

    Raises:
        ConfigurationError: Members are older than the mark, or Statuses are older than Members.
        ThrottledError: Members did not answer.
    """
    if not mark.stamped:
        return mark.evaluated_through
    stored = members.stamps([slot]).get(slot)
    refuse_mixture(slot, mark.evaluated_through, stored, lambda least: statuses.is_stamped(slot, least))
    return stored if mark.evaluated_through is None else mark.evaluated_through


def refuse_mixture(slot: int, mark: int | None, members: int | None, is_stamped: Callable[[int], bool]) -> None:
    """Check that no table is older than one that is written after it.

    ``members`` is the slot's stamp in Members. ``is_stamped`` says whether that in Statuses is at a step or later.

    Raises:
        ConfigurationError: Members are older than the mark, or Statuses are older than Members.
    """
    if mark is not None and (members is None or members < mark):
        raise _mixture(slot, f"Members are {_through(members)}, but the mark is at step {mark}")
    if members is None:
        if is_stamped(0):
            raise _mixture(slot, "Statuses have answers, but Members and Control know of no step")
    elif not is_stamped(members):
        raise _mixture(slot, f"Members are complete through step {members}, but Statuses are older")


def put_stamps(slot: int, step: int, members: Members, statuses: Statuses) -> None:
    """Stamp a slot whose mark moves to ``step`` without an evaluation of its own. Move the mark afterwards."""
    statuses.stamp(slot, step)
    members.stamp(slot, step)


def _through(step: int | None) -> str:
    return "empty" if step is None else f"complete through step {step} only"


def _mixture(slot: int, seen: str) -> ConfigurationError:
    return ConfigurationError(f"slot {slot}: {seen}; a table was restored or emptied: {PAGE} says how to continue")
