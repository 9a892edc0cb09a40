"""On one machine a type that is not listed has the bytes and answers of the version before listed types."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tests.integration.serving.listing import FIRST, PERIOD, TYPES, VALUES, closed, joins_at, opened, set_of, visible

BEFORE_LISTS = "e639db7e6c8f8f2f752c6c38a974ebb6647f990e603b3604c1ce6f91e9be62a3"
"""SHA-256 of what commit 2ac8425c, the last one without listed types, stored and answered for this history."""


def test_joins_states_and_answers_are_as_before(tmp_path: Path) -> None:
    types = {name: {key: type_[key] for key in type_ if key != "listed"} for name, type_ in TYPES.items()}
    directory, answered, path = opened(tmp_path, FIRST * PERIOD, types), [], tmp_path / "parts"
    places = [(name, set_of(value)) for name in TYPES for value in VALUES]
    for step in range(FIRST, FIRST + 30):
        for each in joins_at(step):
            directory.joining.join(replace(each, value=None), step * PERIOD + 1)
        rows = directory.log.joins(step, b"", None).tobytes()
        directory.evaluate(closed(step))
        answers = directory.querying.query(places, visible(directory, step)).above
        answered.append((sha256(rows).hexdigest(), *answers))
    directory.close()
    parts = sorted((each.name.rpartition("-")[0], sha256(each.read_bytes()).hexdigest()) for each in path.iterdir())
    assert sum(sum(answers) for _, *answers in answered) > 100
    assert sha256(repr((answered, parts)).encode()).hexdigest() == BEFORE_LISTS
