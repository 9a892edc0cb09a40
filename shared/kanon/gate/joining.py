"""Use case: write joins to the log. It reads nothing, so no join can depend on the joins of others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kanon.gate.mechanism.steps import end_of, step_at
from kanon.gate.names import ClientKind, client_token, set_key
from kanon.gate.storage.aws.step_log import Row
from kanon.gate.types import Type
from kanon.keys import Secret

if TYPE_CHECKING:  # it names columns of numpy, which `join` does not load
    from kanon.gate.storage.protocols import JoinWriter


@dataclass(frozen=True)
class Join:
    """One client joins one set. ``value`` is that of the set if its type is listed."""

    type_name: str
    set_id: bytes
    kind: ClientKind
    client: bytes
    value: bytes | None = None


@dataclass(frozen=True)
class Joining:
    """The use case with its log, types and keys. ``seal`` seals the value of a set key for the lister."""

    types: dict[str, Type]
    pepper: Secret
    client_key: Secret
    log: "JoinWriter"
    period: int
    outage_allowance: int
    seal: Callable[[bytes, bytes], bytes] | None = None

    def join(self, join: Join, now: float) -> None:
        """Log one join at ``now``. Repeating it within the step changes nothing.

        Raises:
            KeyError: the type is not configured.
        """
        self.log.put(self.row(join, now))

    def join_all(self, joins: Sequence[Join], now: float) -> list[bool]:
        """Log many joins. Returns for each whether it is in the log."""
        rows = [self.row(join, now) for join in joins]
        if not rows or not self.log.layouts.at(rows[0].step).partitions:
            return self.log.put_groups([[row] for row in rows])
        groups = self._groups(joins, rows)
        stored = dict(zip(groups, self.log.put_groups(list(groups.values())), strict=True))
        logged = {row: stored[place] for place, group in groups.items() for row in group}
        return [logged[row] for row in rows]

    def _groups(self, joins: Sequence[Join], rows: Sequence[Row]) -> dict[tuple[int, int], list[Row]]:
        """The distinct rows of a batch, in groups by slot. The n-th join of a client in a slot is in its n-th group.

        So no group holds two joins of one client: it would link two sets of the client.
        """
        layout = self.log.layouts.at(rows[0].step)
        groups: dict[tuple[int, int], list[Row]] = {}
        clients: dict[Row, set[tuple[int, str, bytes]]] = {}
        for row, join in zip(rows, joins, strict=True):
            clients.setdefault(row, set()).add((layout.slot_of(row.set_key), join.kind, join.client))
        following: dict[tuple[int, str, bytes], int] = {}
        for row, own in clients.items():  # several clients, if their tokens collide
            turn = max(following.get(client, 0) for client in own)
            following.update(dict.fromkeys(own, turn + 1))
            groups.setdefault((layout.slot_of(row.set_key), turn), []).append(row)
        return groups

    def row(self, join: Join, now: float) -> Row:
        """The row of a join at ``now``. It expires one outage allowance after the end of its step."""
        step = step_at(now, self.period)
        name = set_key(self.pepper, join.type_name, join.set_id)
        bits = self.types[join.type_name].parameters.client_bits
        token = client_token(self.client_key, name, join.kind, join.client, bits)
        expires = end_of(step, self.period) + self.outage_allowance
        sealed = b"" if join.value is None or self.seal is None else self.seal(join.value, name)
        return Row(step, name, token, join.type_name, expires, sealed)
