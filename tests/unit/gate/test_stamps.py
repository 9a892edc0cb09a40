"""Which steps mark, Members and Statuses of a slot may name together: for every combination of small steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import pytest

from kanon.errors import ConfigurationError
from kanon.gate.stamps import agreed_step
from kanon.gate.storage.control import Mark

STEPS = (None, 5, 6, 7)


@dataclass(frozen=True)
class Table:
    """Members or Statuses with a stamp."""

    through: int | None

    def stamps(self, slots: Iterable[int]) -> dict[int, int]:
        return {} if self.through is None else dict.fromkeys(slots, self.through)

    def is_stamped(self, slot: int, least: int) -> bool:
        return self.through is not None and self.through >= least


def agreed(mark: int | None, members: int | None, statuses: int | None, *, stamped: bool = True) -> int | None:
    return agreed_step(3, Mark(mark, None, stamped), Table(members), Table(statuses))  # type: ignore[arg-type]


@pytest.mark.parametrize(("mark", "members", "statuses"), list(product(STEPS, repeat=3)))
def test_evaluation_continues_only_if_its_stamps_agree(
    mark: int | None, members: int | None, statuses: int | None
) -> None:
    if (mark or 0) <= (members or 0) <= (statuses or 0) and (members is not None or statuses is None):
        assert agreed(mark, members, statuses) == (members if mark is None else mark)
    else:
        with pytest.raises(ConfigurationError, match=r"^slot 3: .*restored or emptied: docs/guides/operate.md#tables"):
            agreed(mark, members, statuses)


@pytest.mark.parametrize("members", STEPS)
def test_a_mark_of_a_version_without_stamps_is_accepted(members: int | None) -> None:
    assert agreed(6, members, None, stamped=False) == 6
