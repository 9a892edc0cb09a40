"""Runs the Python blocks of a guide against a service on this machine."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from kanon.local import Stack
from tests.paths import ROOT


def blocks(page: str) -> list[str]:
    """The Python blocks of a guide, in their order."""
    text = (ROOT / "docs" / "guides" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(code: str, url: str, names: dict[str, Any]) -> None:
    """Run a block with the names of the blocks before it."""
    exec(compile(code.replace("http://127.0.0.1:8000", url), "guide", "exec"), names)


@contextmanager
def served() -> Iterator[tuple[Stack, str]]:
    """A stack with reports, whose public key is there, and its address."""
    with Stack({"Reports": "ON"}, start=1_800_000_000.0) as stack, closing(stack.serve()) as server:
        stack.advance(3600)
        yield stack, server.url
        assert stack.failures == []
