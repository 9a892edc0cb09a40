from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kanon.local import Stack
from tests.integration.serving.conftest import fixed_secrets, not_durable
from tests.integration.serving.machine import Machine, machine

__all__ = ["fixed_secrets", "not_durable"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path / "data", gateway=True) as made:
        yield made


@pytest.fixture
def stack(new_stack: Callable[..., Stack]) -> Stack:
    return new_stack({"Gateway": "ON"})
