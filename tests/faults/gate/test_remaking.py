"""An object of true sets that is lost is made again, also of more parts than a step may read: some in each step."""

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from kanon.gate import deciding, evaluation
from kanon.gate.evaluation import Evaluation
from kanon.gate.mechanism.steps import end_of
from kanon.gate.publishing import Horizon
from kanon.gate.showing import ENTRY
from kanon.gate.storage.aws.control import Remaking, SlotRow
from kanon.gate.storage.aws.parts import PartList
from kanon.gate.sweeping import referenced
from kanon.gate.true_sets import HEADER_BYTES, TrueSets
from tests.faults.fault_injector import ProcessDied
from tests.unit.examples import set_key
from tests.unit.gate.test_run_of_a_slot import PERIOD, STEP, Service

NAMES = [set_key(n) for n in range(40)]
STEPS, LOST = 40, STEP + 8
A_STEP = 8
"""The parts read in a step."""


def joins(seed: int) -> dict[int, dict[bytes, tuple[int, ...]]]:
    """Sets cross and end all the time. In some steps one set is joined, and in some none."""
    chance, rows = random.Random(seed), dict[int, dict[bytes, tuple[int, ...]]]()
    for step in range(STEP, STEP + STEPS):
        sets = chance.sample(NAMES, chance.choice((0, 1, 5, 20)))
        rows[step] = {name: tuple(sorted(chance.sample(range(12), chance.choice((1, 3, 8))))) for name in sets}
    return {step: sets for step, sets in rows.items() if sets}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MOST_PART_BYTES", 200)


True_ = frozenset[tuple[bytes, int, int]]
"""What an object says of the sets that are true: prefix, crossing, last step."""


def evaluated(service: Service, step: int) -> True_ | None:
    """Evaluate a step. Returns what the object of true sets says; None if there is none."""
    service.now = end_of(step, PERIOD) + 180.0
    service.run()
    assert service.through == step
    shown = service.row_.shown
    assert service.row_.horizon is not None
    assert service.row_.horizon.shows == shown
    return None if shown is None else told(service.true_sets(shown), step)


def told(sets: TrueSets, step: int) -> True_:
    """An object stays if no set crosses, also with sets that are no longer true."""
    entries: list[tuple[bytes, int, int]] = np.frombuffer(sets.content, ENTRY, sets.count, HEADER_BYTES).tolist()
    return frozenset(each for each in entries if each[2] >= step)


def lose(service: Service) -> None:
    assert service.row_.shown is not None
    service.objects.pop(service.row_.shown, None)


@pytest.fixture(params=range(3))
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def right(seed: int, small: None) -> dict[int, True_ | None]:
    """The object of true sets after each step, if none is lost."""
    service = Service(joins(seed), 0.0)
    contents = {step: evaluated(service, step) for step in range(STEP, STEP + STEPS)}
    assert len({*contents.values()}) > STEPS / 3
    return contents


@pytest.fixture
def losing(seed: int, small: None, monkeypatch: pytest.MonkeyPatch) -> Service:
    """The object of the last evaluated step is lost. From now on few parts are read in a step."""
    service = Service(joins(seed), 0.0)
    for step in range(STEP, LOST + 1):
        evaluated(service, step)
    lose(service)
    monkeypatch.setattr(evaluation, "MOST_PARTS_READ", A_STEP)
    return service


def remade(service: Service, right: dict[int, True_ | None], first: int = LOST + 1) -> int:
    """Evaluate on until there is an object, which is right. Returns the number of steps with joins."""
    for step in range(first, STEP + STEPS):
        if (found := evaluated(service, step)) is not None:
            assert found == right[step]
            assert service.row_.remaking is None
            return sum(first <= each <= step for each in service.rows)
    raise AssertionError("it was not made again")


def parts(service: Service) -> int:
    return len(service.list_of(service.row_.manifest or "").pieces)


def test_an_object_that_is_lost_is_made_again_of_some_parts_in_each_step(
    losing: Service, right: dict[int, True_ | None]
) -> None:
    assert parts(losing) >= 2 * A_STEP
    steps = remade(losing, right)
    assert steps > 1
    for step in range((losing.through or 0) + 1, STEP + STEPS):
        assert evaluated(losing, step) == right[step]


def test_few_parts_are_read_at_once_though_no_set_crosses() -> None:
    rows: dict[int, dict[bytes, tuple[int, ...]]] = {STEP: {NAMES[0]: (*range(12),)}, STEP + 2: {NAMES[1]: (1,)}}
    service, right = Service(rows, 0.0), Service(rows, 0.0)
    assert evaluated(service, STEP) == evaluated(right, STEP) is not None
    lose(service)
    assert evaluated(right, STEP + 1) is not None
    assert evaluated(service, STEP + 1) is None  # an idle step
    assert evaluated(service, STEP + 2) == evaluated(right, STEP + 2) is not None


def test_what_was_made_so_far_and_is_lost_is_made_again(losing: Service, right: dict[int, True_ | None]) -> None:
    """For example if an older version has swept what it does not know."""
    step = begun(losing)
    assert losing.row_.remaking is not None
    del losing.objects[losing.row_.remaking.name]
    assert remade(losing, right, step + 1) > 1


def begun(service: Service) -> int:
    """Evaluate until two steps have read parts. Returns the last step."""
    step = LOST
    while service.row_.remaking is None or service.row_.remaking.end < f"{40:02x}":
        step += 1
        evaluated(service, step)
    return step


def test_what_was_made_of_other_parts_does_not_count(
    losing: Service, right: dict[int, True_ | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version evaluates steps, and lets what it does not know stay."""
    step = begun(losing)
    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "_put_true", lambda _, run, *__: (None, run.row.remaking))
        for _ in range(2):
            step += 1
            evaluated(losing, step)
    assert losing.row_.remaking is not None
    assert remade(losing, right, step + 1) > 1


CALLS = ("put", "read", "put_list", "put_true", "true_sets", "list_of", "has", "commit", "record_decided", "write")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_worker_that_stops_at_any_call_changes_nothing(
    losing: Service, right: dict[int, True_ | None], monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    """In each step, workers die at each of their calls, before or after it, until one gets through."""
    left, deaths = [0], 0

    def dying(name: str) -> Any:
        call = getattr(Service, name)

        def called(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise ProcessDied
            answer = call(*args, **options)
            if left[0] == 0:
                raise ProcessDied
            return answer

        return called

    complete = 0
    for name in CALLS:
        monkeypatch.setattr(Service, name, dying(name))
    for step in range(LOST + 1, STEP + STEPS):
        left[0] = 1 + (step - LOST) * 5 % 31
        with suppress(ProcessDied):
            evaluated(losing, step)
        deaths += left[0] <= 0
        left[0] = -1
        evaluated(losing, step)
        if (shown := losing.row_.shown) is not None:
            assert told(losing.objects[shown], step) == right[step]
            lose(losing)
            complete += 1
    assert deaths > STEPS / 2
    assert complete > 1


def test_the_sweeper_keeps_what_is_made_of_it_so_far() -> None:
    name = f"true/0/0/{STEP}-1-0-{'0' * 32}"
    row = SlotRow(2, STEP, "list", ("list",), horizon=Horizon(STEP, 0), remaking=Remaking("list", "80", name))
    objects: Any = Service({}, 0.0, objects={"list": PartList(STEP, ())})
    assert name in referenced(row, objects)


# Planted mistakes


def without_crossings(self: Evaluation, run: Any, pieces: Any, found: Any, *, since: int) -> Any:
    """Sets that crossed after their part was read are left out."""
    return [] if since and run.row.shown is None else RIGHT_SHOWN(self, run, pieces, found, since=since)


def of_any_parts(self: Evaluation, run: Any) -> Any:
    """What was made of other parts counts."""
    if run.row.remaking is not None:
        run.bases = (run.row.remaking.manifest,)
    return RIGHT_MADE(self, run)


RIGHT_SHOWN, RIGHT_MADE = Evaluation._shown, Evaluation._made


@pytest.mark.parametrize("name", ["crossings are left out", "what was made of other parts counts"])
def test_a_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = 0
    for seed in range(3):
        with monkeypatch.context() as patch:
            contents, service = Service(joins(seed), 0.0), Service(joins(seed), 0.0)
            right = {step: evaluated(contents, step) for step in range(STEP, STEP + STEPS)}
            for step in range(STEP, LOST + 1):
                evaluated(service, step)
            lose(service)
            patch.setattr(evaluation, "MOST_PARTS_READ", A_STEP)
            try:
                if name.startswith("crossings"):
                    patch.setattr(Evaluation, "_shown", without_crossings)
                    remade(service, right)
                else:
                    patch.setattr(Evaluation, "_made", of_any_parts)
                    test_what_was_made_of_other_parts_does_not_count(service, right, patch)
            except AssertionError:
                found += 1
    assert found
