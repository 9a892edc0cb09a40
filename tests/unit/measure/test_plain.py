"""The yardstick of evaluation does the same work as the service."""

from infra.measure import evaluating
from infra.measure.evaluating import Memory, StoredStep


def test_the_plain_loop_writes_the_items_of_the_service_byte_for_byte() -> None:
    type_ = evaluating.fledge()
    step = StoredStep.draw(type_, 400, seed=3)
    service, plain = Memory(step), Memory(step)
    step.evaluate(service, type_)
    step.evaluate_plainly(plain, type_)
    items = service.written()
    assert items == plain.written()
    assert len(items) == 400
    # The mix covers what an item can hold.
    assert any("wake_up" in item for item in items)
    crossed = {item["set_key"]["B"] for item in items if "crossings" in item}
    had = {key for key, item in step.items.items() if "crossings" in item}
    assert crossed > had
