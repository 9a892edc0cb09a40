"""One fixture starts the whole service: handlers, tables, queue, schedule, HTTP and clock.

No outcome depends on chance, on the shell or on the load of the machine. Examples are the same in every run, and
variables of a shell or a CI service are removed before they are read.
"""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from typer.main import get_command

from kanon.cli import screen
from kanon.local import Stack, template
from kanon.local.stack import LOCAL
from tests.monitor.monitor import find_problems, monitor_every_stack
from tests.moto_engine import Moto
from tests.quick_aws import quick_aws

START = 1_700_000_000.0
"""When simulated time starts, unless a test says otherwise: 2023-11-14 22:13:20 UTC."""
OF_THE_SCREEN = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"}
"""What changes the width or the colours of a command's output."""
OF_THE_SHELL = ("AWS_", "KANON_", "POWERTOOLS_")
HERE = "127.0.0.1,localhost"
ALONE = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",  # an EC2 instance gives credentials to every process
    **{name: ",".join(filter(None, (os.environ.get(name), HERE))) for name in ("NO_PROXY", "no_proxy")},
}

for variable in [name for name in os.environ if name in OF_THE_SCREEN or name.startswith(OF_THE_SHELL)]:
    del os.environ[variable]
os.environ.update(ALONE)

# A busy machine must not fail a test. Examples are the same in every run, except with `make fuzz`.
settings.register_profile(
    "kanon",
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kanon")


@pytest.fixture(scope="session", autouse=True)
def _monitor_every_stack() -> Iterator[None]:
    """Monitor every stack that a test starts."""
    with monitor_every_stack():
        yield


@pytest.fixture(scope="session", autouse=True)
def _show_no_progress() -> Iterator[None]:
    """Hide the progress of commands: it depends on the load of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screen, "QUIET", 3600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _build_the_program_once() -> Iterator[None]:
    """Typer would build all commands for each command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _stacks_of_tests() -> Iterator[None]:
    """Without a seed of the test, the secrets of a stack, its noise and its tokens are the same in every run.

    A stack runs on moto, unless a test names another engine.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(Stack.__init__.__kwdefaults__, "seed", 1)  # type: ignore[misc]
        patch.setitem(Stack.__init__.__kwdefaults__, "engine", Moto)  # type: ignore[misc]
        yield


@pytest.fixture(scope="session", autouse=True)
def _collect_no_libraries() -> Iterator[None]:
    """Exclude the imported libraries from garbage collection, for speed.

    Also collect less often: most objects of a moto call are freed earlier. Every module ends with a collection.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _start_stacks_quickly() -> Iterator[None]:
    """Parse a template once, not for each stack, and make AWS calls quick.

    A new slot evaluates as many steps as an outage may last: two days instead of a week, if a test names none.
    """
    parsed = cache(template._parse)
    with quick_aws(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "_parse", lambda text: deepcopy(parsed(text)))  # a test may change a document
        patch.setitem(LOCAL, "OutageAllowance", "172800")
        yield


@pytest.fixture(autouse=True)
def _fail_on_forbidden_calls_and_output() -> Iterator[None]:
    """Fails any test in which a function exceeds its role or leaks data."""
    yield
    assert find_problems() == []


@pytest.fixture(scope="module", autouse=True)
def _report_leaks_in_their_module() -> Iterator[None]:
    """Report unclosed resources in the module that leaves them open, not in a later one."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def new_stack() -> Iterator[Callable[..., Stack]]:
    """Starts stacks on moto at a simulated time, with the arguments of ``Stack``."""
    with ExitStack() as running:

        def start(parameters: dict[str, str] | None = None, **options: Any) -> Stack:
            return running.enter_context(Stack(parameters, **{"start": START, **options}))

        yield start


@pytest.fixture
def stack(new_stack: Callable[..., Stack]) -> Stack:
    """The service with its default parameters."""
    return new_stack()
