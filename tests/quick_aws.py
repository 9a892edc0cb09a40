"""Make botocore and moto quicker and change none of their answers: what depends on the code alone is found once.

A call takes one or two milliseconds, a session ten, and the suite makes hundreds of thousands of calls.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import cache, lru_cache
from io import BytesIO
from string import ascii_letters, digits
from typing import Any, cast

import botocore.session
import pytest
from botocore import hooks, utils
from botocore.auth import SigV4Auth
from botocore.hooks import EVENT_ALIASES, EventAliaser, NodeList, _PrefixTrie
from botocore.model import StructureShape
from moto import backend_index
from moto.core import models, responses
from moto.core.base_backend import BaseBackend
from moto.core.request import Request, environ_key_for_header
from moto.core.serialize import AttributePickerContext, BaseJSONSerializer, XFormedAttributePicker
from moto.dynamodb import models as dynamodb_models
from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.table import Table
from moto.dynamodb.parsing.ast_nodes import DepthFirstTraverser, Node
from moto.dynamodb.parsing.expressions import UpdateExpressionParser
from moto.dynamodb.parsing.validators import ActionCountValidator, OverlappingPathsValidator
from moto.moto_api._internal.moto_random import MotoRandom

CALLED_MOST = ("dynamodb", "sqs", "secretsmanager")
Method = Callable[..., Any]


@contextmanager
def quick_aws() -> Iterator[None]:
    """Sessions, calls and the emulator are quick meanwhile."""
    patterns = sorted(backend_index.backend_url_patterns, key=lambda each: each[0] not in CALLED_MOST)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", cache(botocore.session.create_loader))
        patch.setattr(EventAliaser, "__copy__", _with_the_same_aliases)
        patch.setattr(EventAliaser, "_alias_event_name", _by_name(EventAliaser._alias_event_name))
        patch.setattr(_PrefixTrie, "_recursive_copy", _copied)
        patch.setattr(hooks, "accepts_kwargs", _by_code(hooks.accepts_kwargs))
        patch.setattr(SigV4Auth, "add_auth", _unsigned(SigV4Auth.add_auth))
        patch.setattr(models, "RESPONSES_METHODS", [])  # the library requests, with which nothing here calls
        patch.setattr(backend_index, "backend_url_patterns", patterns)
        patch.setattr(Request, "from_primitives", classmethod(_of_a_known_address(Request.from_primitives.__func__)))
        patch.setattr(BaseBackend, "urls", property(_by_class(BaseBackend.urls.fget)))
        patch.setattr(responses, "method_names_from_class", cache(responses.method_names_from_class))
        patch.setattr(responses, "camelcase_to_underscores", cache(responses.camelcase_to_underscores))
        patch.setattr(XFormedAttributePicker, "get_possible_keys", _by_shape(XFormedAttributePicker.get_possible_keys))
        patch.setattr(
            BaseJSONSerializer, "_serialize_type_structure", _present(BaseJSONSerializer._serialize_type_structure)
        )
        patch.setattr(dynamodb_models, "copy", _copies)
        patch.setattr(DynamoDBBackend, "transact_write_items", _naming(DynamoDBBackend.transact_write_items))
        patch.setattr(MotoRandom, "get_random_string", _random_string)
        patch.setattr(UpdateExpressionParser, "make", cache(UpdateExpressionParser.make))  # calls change a copy
        nodes = _by_class(DepthFirstTraverser.nodes_to_be_processed)
        patch.setattr(DepthFirstTraverser, "nodes_to_be_processed", nodes)
        for check_of_all in (ActionCountValidator, OverlappingPathsValidator):
            patch.setattr(check_of_all, "traverse", _at_the_root)
        patch.setattr(utils, "_parse_timestamp_with_tzinfo", lru_cache(1024)(utils._parse_timestamp_with_tzinfo))
        yield


def _with_the_same_aliases(events: EventAliaser) -> EventAliaser:
    """A copy for a client. Nobody changes the aliases."""
    return EventAliaser(copy(events._emitter), events._event_aliases)


def _copied(trie: _PrefixTrie, node: dict[str, Any]) -> dict[str, Any]:
    """A copy of the handlers of a session for a client."""
    return {
        key: NodeList(*map(list, value))
        if type(value) is NodeList
        else _copied(trie, value)
        if type(value) is dict
        else value
        for key, value in node.items()
    }


def _by_name(alias: Method) -> Method:
    """The name of an event under which its handlers are kept."""
    known: dict[str, str] = {}

    def found(events: EventAliaser, name: str) -> str:
        if events._event_aliases is not EVENT_ALIASES:
            return str(alias(events, name))
        if name not in known:
            known[name] = alias(events, name)
        return known[name]

    return found


def _by_code(accepts_kwargs: Method) -> Method:
    """Whether a handler takes any keyword; found by its code, so that no handler is kept alive."""
    known: dict[Any, Any] = {}

    def found(handler: Any) -> Any:
        code = getattr(handler, "__code__", None)
        if code is None:
            return accepts_kwargs(handler)
        if code not in known:
            known[code] = accepts_kwargs(handler)
        return known[code]

    return found


def _unsigned(sign: Method) -> Method:
    """A call to moto names its region and service as a signed one does; moto checks no signature."""

    def named(auth: SigV4Auth, request: Any) -> None:
        if type(auth) is not SigV4Auth or ".amazonaws.com/" not in request.url or auth.credentials is None:
            sign(auth, request)
            return
        request.context["timestamp"] = "20260101T000000Z"
        request.headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={auth.scope(request)}"

    return named


def _of_a_known_address(build: Method) -> Method:
    """A request to the address of a service: what is not in its headers and its body is built once."""
    known: dict[tuple[str, str], dict[str, Any]] = {}

    def found(kind: type[Request], method: str, url: str, headers: Any, body: Any = None) -> Request:
        place = method, url
        if not url.endswith(".amazonaws.com/") or type(body) is not bytes or "Transfer-Encoding" in headers:
            return cast(Request, build(kind, method, url, headers, body))
        if place not in known:
            known[place] = dict(build(kind, method, url, {}, b"").environ)
        texts = ((name, value.decode() if isinstance(value, bytes) else value) for name, value in headers.items())
        given = {environ_key_for_header(name): value for name, value in texts}
        return kind({**known[place], **given, "CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body)})

    return found


def _by_class(method: Method) -> Method:
    """What is the same for all objects of a class: the addresses of a service, the nodes that a check looks at."""
    known: dict[type, Any] = {}

    def found(owner: Any) -> Any:
        if type(owner) not in known:
            known[type(owner)] = method(owner)
        return known[type(owner)]

    return found


def _at_the_root(check: DepthFirstTraverser, node: Node) -> Node:
    """These checks compare all actions of an expression: the root has those of every node below it."""
    return cast(Node, check.process(node))


def _present(serialize: Method) -> Method:
    """Look only at the members that an item's attribute has: one of ten kinds."""

    def found(serializer: Any, serialized: Any, value: Any, shape: StructureShape, key: str) -> None:
        if shape.name != "AttributeValue" or type(value) is not dict or not key:
            serialize(serializer, serialized, value, shape, key)
            return
        attribute: dict[str, Any] = {}
        for kind, content in value.items():
            serializer._serialize(attribute, content, shape.members[kind], kind)
        serializer._default_serialize(serialized, attribute, shape, key)

    return found


class _Copies:
    """The module ``copy`` for moto, which copies a whole table for every item of a transaction."""

    def __init__(self) -> None:
        self.of_thread = threading.local()

    def deepcopy(self, value: Any) -> Any:
        """A copy. That of a table in a transaction shares all items but those that it names, and is made once."""
        kept: dict[str, Table] | None = getattr(self.of_thread, "kept", None)
        if kept is None or not isinstance(value, Table):
            return deepcopy(value)
        if value.name not in kept:
            kept[value.name] = table = copy(value)
            table.items = copy(value.items)
            for key in self.of_thread.named[value.name]:
                if key in table.items:
                    table.items[key] = deepcopy(table.items[key])
        return kept[value.name]


_copies = _Copies()


def _naming(transact: Method) -> Method:
    """A transaction says which items it names. Its tables have no sort key."""

    def found(backend: DynamoDBBackend, transact_items: list[dict[str, Any]]) -> None:
        named: dict[str, list[DynamoType]] = {}
        for part in (part for entry in transact_items for part in entry.values()):
            name = backend.get_table(part["TableName"]).hash_key_attr
            named.setdefault(part["TableName"], []).append(DynamoType(part.get("Key", part.get("Item"))[name]))
        _copies.of_thread.named, _copies.of_thread.kept = named, {}
        try:
            transact(backend, transact_items)
        finally:
            _copies.of_thread.kept = None

    return found


def _random_string(random: MotoRandom, length: int = 20, include_digits: bool = True, lower_case: bool = False) -> str:
    """Every answer has an id of 52 characters."""
    drawn = "".join(random.choices(ascii_letters + digits * include_digits, k=length))
    return drawn.lower() if lower_case else drawn


def _by_shape(possible_keys: Method) -> Method:
    """The names that a member of an answer may have in the objects of a class."""
    known: dict[Any, tuple[str, ...]] = {}

    def found(picker: XFormedAttributePicker, context: AttributePickerContext) -> tuple[str, ...]:
        member = context.shape
        place = (type(context.obj), context.key, member, getattr(member, "parent", None))
        if place not in known:
            known[place] = tuple(dict.fromkeys(possible_keys(picker, context)))
        return known[place]

    return found
