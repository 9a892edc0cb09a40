"""docs/guides/telemetry.md: with its hooks only shared values leave, through the real SDKs."""

import io
import json
from collections.abc import Callable
from typing import Any

import posthog
import pytest
import sentry_sdk

from kanon.client import Background, Client, Join
from tests.integration.local.guides import blocks, run, served


def test_the_hooks_of_the_guide_let_only_shared_values_leave() -> None:
    with served() as (stack, url):
        with Client(url) as client:
            client.join_many(Join("fledge", "popular", f"client-{n}") for n in range(120))
        stack.advance(2 * 3600)
        names: dict[str, Any] = {}
        for block in blocks("telemetry.md"):
            run(block, url, names)
        background: Background = names["background"]
        for value in ("popular", "secret"):
            background.shown("fledge", value)
        assert background.flush(30)

        out = io.StringIO()  # the exporter of the page has the stdout of its import
        names["exporter"]._exporter.out = out
        tracer = names["provider"].get_tracer("guide")
        for term in ("popular", "secret"):
            attributes = {"search.term": term, "http.request.method": "GET", "enduser.id": "alice"}
            with tracer.start_as_current_span("search", attributes=attributes):
                pass
        names["provider"].shutdown()
        spans = out.getvalue()
        for told in (spans, sent_by_sentry(names["before_send"]), sent_by_posthog(names["before_send_posthog"])):
            assert "popular" in told
            assert "secret" not in told
            assert "alice" not in told
        assert '"http.request.method": "GET"' in spans
        assert background.flush(30)
        background.client.close()


def sent_by_sentry(before_send: Callable[..., Any]) -> str:
    """What the SDK hands to its transport for two errors."""
    sent: list[str] = []

    class Transport(sentry_sdk.Transport):
        def capture_envelope(self, envelope: Any) -> None:
            sent.append(envelope.serialize().decode())

    client = sentry_sdk.Client(
        dsn="https://key@sentry.example/1", before_send=before_send, transport=Transport, default_integrations=False
    )
    with sentry_sdk.new_scope() as scope:
        scope.set_client(client)
        scope.set_tag("user", "alice")
        scope.set_user({"id": "alice"})
        for term in ("popular", "secret"):
            scope.set_tag("search.term", term)
            try:
                raise ValueError(f"alice asked for secret {term}")
            except ValueError as error:
                sentry_sdk.capture_exception(error)
    client.close()
    assert len(sent) == 2
    assert all('"type":"ValueError"' in text for text in sent)
    return "".join(sent)


def sent_by_posthog(before_send: Callable[..., Any]) -> str:
    """What the SDK sends for two events."""
    sent: list[Any] = []
    client = posthog.Posthog("key", host="https://posthog.example", before_send=before_send, sync_mode=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posthog.client.batch_post", lambda *_, batch, **__: sent.extend(batch))
        for term in ("popular", "secret"):
            client.capture("searched", distinct_id="d1", properties={"search.term": term, "user": "alice"})
    client.shutdown()
    assert len(sent) == 2
    return json.dumps(sent, default=str)
