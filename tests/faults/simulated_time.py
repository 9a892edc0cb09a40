"""The time of a simulated stack. Workers may have their own clocks."""

from kanon.local import Stack
from tests.faults.fault_injector import FaultInjector


class SimulatedTime:
    """The clock of a simulated stack, and that of the worker of this thread."""

    stack: Stack
    faults: FaultInjector

    def true_time(self) -> float:
        """Unix seconds, independent of a worker's clock."""
        return self.stack.clock.now()

    def now(self) -> float:
        """The result of ``kanon.clock.now`` for the worker of this thread."""
        worker = self.faults.worker
        return self.true_time() + (worker.skew if worker is not None else 0.0)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; a worker at its deadline dies."""
        self.stack.clock.set(self.true_time() + seconds)
        if self.faults.worker is not None:
            self.faults.check_alive(self.faults.worker)

    def set_time(self, moment: float) -> None:
        """Be at a time, forwards or backwards."""
        self.stack.clock.set(moment)
