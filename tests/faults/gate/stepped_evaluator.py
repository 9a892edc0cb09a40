"""Evaluators and sweepers that run in parallel and advance by one AWS call on command."""

import json
import threading
from typing import Any, ClassVar

from botocore.awsrequest import AWSResponse

from kanon.local.functions import HandlerContext
from tests.faults.failures import Action
from tests.faults.fault_injector import Call, ProcessDied, Worker
from tests.faults.gate.simulated_stack import SimulatedStack


def arrives(call: Call, _: Any) -> AWSResponse:
    """The call takes effect and is answered."""
    return call.send()


class SteppedEvaluator:
    """One invocation of evaluate in its own thread; it waits before each of its calls.

    Exactly one thread runs at any time, so a sequence of steps is one interleaving and can be repeated.

    Args:
        skew: how far its clock is ahead of true time, seconds.
        unaware: whether it believes to have unlimited time, as a paused worker does.
    """

    function: ClassVar[str] = "evaluate"

    def __init__(self, simulation: SimulatedStack, environment: Any, slot: int, skew: float, *, unaware: bool) -> None:
        self.simulation = simulation
        self.slot = slot
        self.unaware = unaware
        self.worker = Worker(self._meet, skew=skew)
        self.pending: Call | None = None
        self.horizon_since: float | None = None
        self.jumped = False
        self.acknowledged: bool | None = None
        self.environment = environment
        self._began = simulation.true_time()
        self._action: Action = arrives
        self._error: BaseException | None = None
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._wait()

    @property
    def ended(self) -> bool:
        """Whether it has returned, failed or died."""
        return self.pending is None

    def step(self, action: Action = arrives) -> None:
        """Let the pending call happen in the given way, and continue to the next one."""
        if self.ended:
            return
        self._action, self.pending = action, None
        self._go.release()
        self._wait()

    def jump(self, skew: float) -> None:
        """Set its clock; ``jumped`` is whether it reads a changed one before it moves the horizon."""
        if self.pending is not None and self.worker.skew != skew and self.horizon_since is None:
            self.jumped = True
        self.worker.skew = skew

    def finish(self, action: Action = arrives) -> None:
        """Run to the end."""
        while not self.ended:
            self.step(action)

    def _wait(self) -> None:
        assert self._stands.acquire(timeout=60), "a worker neither called nor ended"
        if self._error is not None:
            raise self._error

    def _meet(self, call: Call) -> AWSResponse:
        if _moves_horizon(call):
            self.horizon_since = self.horizon_since or self.simulation.true_time()
        else:
            self.horizon_since = None
        self.pending = call
        self._stands.release()
        self._go.acquire()
        self.simulation.faults.check_alive(self.worker)
        return self._action(call, self.simulation.pass_time)

    def _run(self) -> None:
        self.simulation.faults.worker = self.worker
        try:
            with self.environment._process:
                self.acknowledged = self._handle(HandlerContext(self.function, "512", self._time_left))
        except ProcessDied:
            self.acknowledged = False
        except BaseException as error:
            self._error = error
        finally:
            self.pending = None
            self._error = self._error or self.simulation.faults.mistake
            self._stands.release()

    def _handle(self, context: HandlerContext) -> bool:
        body = json.dumps({"slot": self.slot, "hop": 0})
        record = {"messageId": "m", "body": body, "eventSource": "aws:sqs", "receiptHandle": "r"}
        result = self.environment._handler({"Records": [record]}, context)
        return not result["batchItemFailures"]

    def _time_left(self) -> float:
        return 120.0 if self.unaware else self._began + 120 - self.simulation.true_time()


class SteppedSweeper(SteppedEvaluator):
    """One invocation of sweep, in the same way."""

    function = "sweep"

    def _handle(self, context: HandlerContext) -> bool:
        try:
            self.environment._handler({}, context)
        except Exception:
            return False
        return True


def _moves_horizon(call: Call) -> bool:
    """Whether a call commits a step."""
    if call.operation != "dynamodb.TransactWriteItems":
        return False
    updates = (entry.get("Update", {}).get("UpdateExpression", "") for entry in call.body["TransactItems"])
    return any("evaluated_through = :evaluated_through" in update for update in updates)
