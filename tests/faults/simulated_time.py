"""The time of a simulated stack: workers may have clocks of their own."""

from kanon.local import Stack
from tests.faults.fault_injector import FaultInjector


class SimulatedTime:
    """What a simulated stack does with its clock, and with that of the worker of this thread."""

    stack: Stack
    wire: FaultInjector

    def true_time(self) -> float:
        """Unix seconds, whatever a worker's clock says."""
        return self.stack.clock.now()

    def now(self) -> float:
        """What ``kanon.clock.now`` tells the worker of this thread."""
        worker = self.wire.worker
        return self.true_time() + (worker.skew if worker is not None else 0.0)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; a worker at its deadline dies."""
        self.stack.clock.set(self.true_time() + seconds)
        if self.wire.worker is not None:
            self.wire.check_alive(self.wire.worker)

    def set_time(self, moment: float) -> None:
        """Be at a time, forwards or backwards."""
        self.stack.clock.set(moment)
