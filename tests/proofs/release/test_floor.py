"""A floor holds with certainty: thousands of releases of a real log, each with a secret of its own."""

from fractions import Fraction

import pytest

from kanon.release.engines.duckdb import DuckDB
from kanon.release.mechanism import Mechanism
from kanon.release.noising import PrivateTable, publish
from kanon.release.tape import Tape
from tests.paths import REAL_LOG
from tests.unit.release.made import groups_of, spec


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real log is not beside the checkout")
@pytest.mark.parametrize("number", [20, pytest.param(1000, marks=pytest.mark.prove)])
def test_with_a_floor_of_50_no_smaller_group_of_the_real_log_is_ever_released(number):
    mechanism = Mechanism(spec(groups_per_user=3, floor=50, delta=Fraction("1e-6")))
    with DuckDB().table([REAL_LOG], mechanism.spec.bounding, "a" * 64) as table:
        kept = [(group.name, group.users) for group in groups_of(table)]
        clients = dict(kept)
        near = [pair for pair in kept if pair[1] >= 40 or number > 20]
        some = PrivateTable.of_rows(mechanism.spec.bounding, lambda: iter(near), {})
        sure = {name for name, users in kept if users >= mechanism.rule.sure_from}
        assert sure
        for i in range(number):
            made = {names[0] for names, _ in publish(some, mechanism, Tape(i.to_bytes(32, "big"), "id")).rows}
            assert sure <= made
            assert min(clients[name] for name in made) >= 50
