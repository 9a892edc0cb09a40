"""Use case: evaluate steps again from earlier states and the log, and use the result if it equals what was released.

The new parts lie beside the stored ones. Every crossing is compared with those that are stored, and every part with the
digest that its manifest has. If all are equal, the manifests name the new parts, also where stored ones are missing or
damaged. Otherwise nothing changes: the released answers came from other data, and one noise must not meet two; or
another version of kanon has divided the parts otherwise, and the evaluation must begin with states of this version.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kanon.errors import ConfigurationError, UndecodableMembersError
from kanon.gate.mechanism.steps import end_of
from kanon.gate.storage.protocols import Manifest, Piece, Sealed, Status
from kanon.serving.directory import Directory


@dataclass(frozen=True)
class Replayed:
    """The result: the steps from which and up to which it went, what was compared, and each difference in words."""

    base: int
    through: int
    parts: int
    crossings: int
    differences: tuple[str, ...]


@dataclass
class _Memory:
    """The mark, manifests and answers of the evaluation: nothing is published."""

    base: Manifest
    made: dict[int, Manifest] = field(default_factory=dict)
    crossings: dict[bytes, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def evaluated_through(self) -> int | None:
        return max(self.made, default=self.base.step)

    def manifest(self) -> Manifest | None:
        return self.made.get(self.evaluated_through() or 0, self.base)

    def manifests(self) -> list[Manifest]:
        return list(self.made.values())

    def after(self, step: int) -> Manifest:
        """The parts after a step. One at which nothing happens has those of the step before."""
        return self.made.get(max((made for made in self.made if made <= step), default=-1), self.base)

    def forget_manifests(self, steps: Iterable[int]) -> None:
        """Nothing is kept."""

    def commit(
        self,
        run: int,
        before: int | None,
        step: int,
        pieces: Sequence[Piece],
        statuses: Iterable[Status],
        visible_from: int,
        sealed: Iterable[Sealed] = (),
    ) -> None:
        del run, before, visible_from, sealed
        self.made[step] = Manifest(step, tuple(pieces))
        for key, crossings, expires in statuses:
            earlier = self.crossings.get(key, ((), 0))[0]
            self.crossings[key] = (crossings if len(crossings) > 1 else (*earlier[-1:], *crossings), expires)

    def expire(self, now: float) -> None:
        """Nothing expires."""


def replay(directory: Directory, base: int | None, now: float) -> Replayed:
    """Evaluate every step after a kept manifest again, compare, and use the new parts if nothing differs.

    Args:
        directory: the deployment, which no other process has open.
        base: begin with the newest manifest that is not later; None: with the oldest one that recovery may use.
        now: the time (Unix s): crossings that nobody needs any more may be gone.

    Raises:
        ConfigurationError: no such manifest is kept.
        UndecodableMembersError: a part of the manifest is missing or damaged: begin with another one.
        LeaseLostError: another process has continued this deployment.
    """
    control, parts, run = directory.control, directory.parts, directory.segments.run
    manifests = control.manifests()
    kept = [each for each in manifests if each.step >= _begun(directory) - 1]
    chosen = kept[:1] if base is None else [each for each in kept if each.step <= base][-1:]
    steps = ", ".join(str(each.step) for each in kept) or "none"
    if not chosen:
        raise ConfigurationError(f"no states after step {base} are kept: give one of {steps}")
    through, memory = directory.evaluated_through, _Memory(chosen[0])
    try:
        for piece in chosen[0].pieces:  # also what no step changes
            parts.read(piece)
    except UndecodableMembersError as error:
        raise UndecodableMembersError(
            f"{error}. Begin with other states: --from with one of {steps}. If none are whole, restore a backup"
        ) from error
    again = replace(directory.segments, control=memory)
    again.evaluate(end_of(through, directory.settings.period) + directory.settings.grace)
    later = [each for each in manifests if each.step > chosen[0].step]
    differences = [*_of_parts(memory, later), *_of_crossings(memory, directory, now)]
    if later and not differences:
        earlier = [each for each in manifests if each.step <= chosen[0].step]
        manifests = [*earlier, *(Manifest(each.step, memory.after(each.step).pieces) for each in later)]
        control.restate(run, manifests, {})
        control.remember()
    parts.sweep({piece.name for each in manifests for piece in each.pieces}, run)
    compared = sum(len(each.pieces) for each in later)
    return Replayed(chosen[0].step, through, compared, len(memory.crossings), tuple(differences))


def _begun(directory: Directory) -> int:
    generation = directory.segments.generation
    return 0 if generation is None else generation.from_step


def _of_parts(memory: _Memory, kept: Iterable[Manifest]) -> Iterator[str]:
    """Where parts differ."""
    for stored in kept:
        made = memory.after(stored.step)
        theirs = {(piece.first, piece.digest) for piece in made.pieces}
        for piece in stored.pieces:
            if (piece.first, piece.digest) not in theirs:
                yield f"step {stored.step}: the part {piece.name} has other states"
        if len(made.pieces) != len(stored.pieces):
            yield f"step {stored.step}: {len(stored.pieces)} parts are stored, and there are {len(made.pieces)}"


def _of_crossings(memory: _Memory, directory: Directory, now: float) -> Iterator[str]:
    """Where crossings differ. A set is named by the first digits of its key."""
    base = memory.base.step
    stored = {key: crossings for key, crossings, _ in directory.control.all_crossings() if crossings[-1] > base}
    for key in sorted(stored.keys() | memory.crossings.keys()):
        made, expires = memory.crossings.get(key, ((), 0))
        ours, theirs = ([at for at in crossings if at > base] for crossings in (made, stored.get(key, ())))
        if ours != theirs and not (not theirs and expires < now):
            yield f"set {key.hex()[:8]}: crossings {theirs or 'none'} are stored, and there are {ours or 'none'}"
