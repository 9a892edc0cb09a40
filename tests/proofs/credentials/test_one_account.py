"""A thousand joins of one account over the real service of one machine."""

from pathlib import Path

import pytest

from tests.integration.credentials.people import served
from tests.integration.credentials.test_joining import STEPS, joins_of_one_account

JOINS = 1_000


@pytest.mark.prove
def test_a_thousand_joins_of_one_account_from_three_devices_count_one(tmp_path: Path) -> None:
    with served(tmp_path / "data") as at:
        assert joins_of_one_account(at, tmp_path, JOINS) == [(1, [1])] * STEPS
