"""Ids of values, waits and kept answers are those of the shared vectors; docstrings show what is true."""

import doctest
import importlib
import pkgutil
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

import kanon.client
from kanon.client import SetId, bucket_of, value_id, waiting
from kanon.local import Stack
from tests.unit.client.vectors import VECTORS

MODULES = sorted(module.name for module in pkgutil.iter_modules(kanon.client.__path__, "kanon.client."))


def _value(vector: dict[str, str]) -> str | bytes:
    return vector["text"] if "text" in vector else bytes.fromhex(vector["hex"])


@pytest.mark.parametrize("vector", VECTORS["valueIds"], ids=lambda vector: str(_value(vector))[:20])
def test_the_id_of_a_value_is_the_hash_of_its_bytes(vector: dict[str, str]) -> None:
    value = _value(vector)
    assert (value_id(value), f"{bucket_of(value):032x}") == (vector["id"], vector["bucket"])


@pytest.mark.parametrize("text", VECTORS["refusedTexts"])
@pytest.mark.parametrize("function", [value_id, bucket_of])
def test_a_text_without_utf_8_is_refused(text: str, function: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        function(text)


@pytest.mark.parametrize("value", [None, 5, [1], bytearray(b"x")])
@pytest.mark.parametrize("function", [value_id, bucket_of])
def test_what_is_neither_text_nor_bytes_is_refused(value: Any, function: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=f"^a value is text or bytes, not {type(value).__name__}$"):
        function(value)


def test_an_id_is_not_hashed_again() -> None:
    assert value_id(value_id("hello")) == value_id("hello") != value_id(str(value_id("hello")))
    assert isinstance(value_id("hello"), SetId)


@pytest.mark.parametrize("vector", VECTORS["waits"])
def test_waits_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    assert waiting.wait(vector["failed"], vector["random"], vector["retryAfter"]) == vector["seconds"]


@pytest.mark.parametrize("vector", VECTORS["cached"])
def test_answers_are_kept_as_the_vectors_say(vector: dict[str, Any]) -> None:
    seconds = waiting.kept(vector["maxAge"], vector["age"], vector["spread"], vector["random"])
    assert seconds == vector["seconds"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_are_true(name: str, stack: Stack) -> None:
    with closing(stack.serve()) as server:
        failed, _ = doctest.testmod(importlib.import_module(name), extraglobs={"service": server.url})
    assert failed == 0


def test_the_docstrings_have_examples() -> None:
    found = [doctest.DocTestFinder().find(importlib.import_module(name)) for name in MODULES]
    assert sum(len(test.examples) for tests in found for test in tests) >= 10
