"""Use case: evaluate steps again from earlier states and the log, and compare all with what is stored.

This is what recovery relies on. It changes nothing: the new parts lie in a folder of their own, which goes at the end.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from kanon.errors import ConfigurationError
from kanon.gate.mechanism.steps import end_of
from kanon.gate.parts import Part
from kanon.gate.storage.disk.parts import PartFiles
from kanon.gate.storage.protocols import Manifest, Piece, Sealed, Status
from kanon.serving.directory import Directory

FOLDER = "replay"


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
    """The mark, manifests and answers of a replay: nothing is published."""

    base: Manifest
    made: dict[int, Manifest] = field(default_factory=dict)
    crossings: dict[bytes, tuple[tuple[int, ...], int]] = field(default_factory=dict)

    def evaluated_through(self) -> int | None:
        return max(self.made, default=self.base.step)

    def manifest(self) -> Manifest | None:
        return self.made.get(self.evaluated_through() or 0, self.base)

    def manifests(self) -> list[Manifest]:
        return list(self.made.values())

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


class _BesideParts(PartFiles):
    """Parts in a folder of their own, and those of the deployment."""

    def __init__(self, folder: Path, stored: PartFiles) -> None:
        super().__init__(folder)
        self._stored = stored

    def read(self, piece: Piece) -> Part:
        return super().read(piece) if (self.folder / piece.name).exists() else self._stored.read(piece)


def replay(directory: Directory, base: int | None, now: float) -> Replayed:
    """Evaluate every step after a kept manifest again, and compare.

    Args:
        directory: the deployment, which no other process has open.
        base: the step of the manifest; None for the oldest one from which recovery may start.
        now: the time (Unix s): crossings that nobody needs any more may be gone.

    Raises:
        ConfigurationError: no manifest of this step is kept.
        UndecodableMembersError: a part is missing or damaged.
    """
    kept = [each for each in directory.control.manifests() if each.step >= _begun(directory) - 1]
    chosen = [each for each in kept if base is None or each.step == base]
    if not chosen:
        steps = ", ".join(str(each.step) for each in kept) or "none"
        raise ConfigurationError(f"no states after step {base} are kept: give one of {steps}")
    through = directory.evaluated_through
    memory = _Memory(chosen[0])
    with _folder(directory.path / FOLDER) as folder:
        parts = _BesideParts(folder, directory.parts)
        again = replace(directory.segments, parts=parts, control=memory)
        again.evaluate(end_of(through, directory.settings.period) + directory.settings.grace)
    later = [each for each in kept if each.step > chosen[0].step]
    differences = [*_of_parts(memory, later), *_of_crossings(memory, directory, now)]
    compared = sum(len(each.pieces) for each in later)
    return Replayed(chosen[0].step, through, compared, len(memory.crossings), tuple(differences))


def _begun(directory: Directory) -> int:
    generation = directory.segments.generation
    return 0 if generation is None else generation.from_step


@contextmanager
def _folder(path: Path) -> Iterator[Path]:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _of_parts(memory: _Memory, kept: Iterable[Manifest]) -> Iterator[str]:
    """Where parts differ. A step at which nothing happens has the parts of the step before."""
    for stored in kept:
        made = max((each for each in memory.made.values() if each.step <= stored.step), key=_step, default=memory.base)
        theirs = {(piece.first, piece.digest) for piece in made.pieces}
        for piece in stored.pieces:
            if (piece.first, piece.digest) not in theirs:
                yield f"step {stored.step}: the part {piece.name} has other states"
        if len(made.pieces) != len(stored.pieces):
            yield f"step {stored.step}: {len(stored.pieces)} parts are stored, and there are {len(made.pieces)}"


def _step(manifest: Manifest) -> int:
    return manifest.step


def _of_crossings(memory: _Memory, directory: Directory, now: float) -> Iterator[str]:
    """Where crossings differ. A set is named by the first digits of its key."""
    base = memory.base.step
    stored = {key: crossings for key, crossings, _ in directory.control.all_crossings() if crossings[-1] > base}
    for key in sorted(stored.keys() | memory.crossings.keys()):
        made, expires = memory.crossings.get(key, ((), 0))
        ours, theirs = ([at for at in crossings if at > base] for crossings in (made, stored.get(key, ())))
        if ours != theirs and not (not theirs and expires < now):
            yield f"set {key.hex()[:8]}: crossings {theirs or 'none'} are stored, and there are {ours or 'none'}"
