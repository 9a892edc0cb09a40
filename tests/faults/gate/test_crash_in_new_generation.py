"""`kanon operate new-generation` that ends before any of its writes, and is called again."""

from typing import Any

import pytest

from kanon.operate import generation
from tests.integration.gate.tables import Running, cross, fresh, states_of
from tests.integration.gate.test_new_generation import NAMES, START, Service, moto

__all__ = ["moto"]


@pytest.mark.parametrize("lost", [False, True], ids=["Control is there", "Control is lost"])
def test_after_an_interruption_before_any_write_a_second_run_has_the_same_result(
    moto: Running, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    def ending(cut: int) -> tuple[Any, int]:
        service = Service(fresh(moto))
        monkeypatch.setattr(generation, "table_ids", lambda *_: dict(service.ids))
        cross(service.statuses, NAMES[0], (START,), 10**10)
        cross(service.statuses, b"x" * 32, (START,), 10**10)
        service.replace("StepLog", *(["Control"] if lost else []))
        if lost:
            service.empty_control()
        writes = 0

        def before(model: Any, **_: Any) -> None:
            nonlocal writes
            is_write = model.name in ("PutItem", "UpdateItem", "TransactWriteItems", "PutObject")
            writes += is_write
            if is_write and writes == cut:
                raise KeyboardInterrupt

        for client, name in ((service.tables.client, "dynamodb"), (service.tables.s3, "s3")):
            client.meta.events.register(f"before-call.{name}", before)
        if cut:
            with pytest.raises(KeyboardInterrupt):
                service.begin()
            for place, row in service.control.rows():  # the leases have expired
                service.control.release(place, row.run)
        listed, all_writes = service.begin(), writes
        statuses = service.tables.items("Statuses")
        return (listed, states_of(service.stored), service.marks, statuses), all_writes

    whole, writes = ending(0)
    assert writes >= 11
    for cut in range(1, writes + 1):
        assert ending(cut)[0] == whole, cut
