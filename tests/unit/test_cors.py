"""Which pages of other origins may call."""

import re

import pytest

from kanon.cors import Cors

PAGE, OTHER = "https://page.test", "https://other.test"


def test_a_page_is_told_that_it_may_call_and_what_it_may_read() -> None:
    assert Cors.of([PAGE]).answer({"origin": PAGE}) == {
        "Access-Control-Allow-Origin": PAGE,
        "Access-Control-Expose-Headers": "retry-after",
        "Vary": "Origin",
    }


@pytest.mark.parametrize(
    "origin", [OTHER, "null", "", f"{PAGE}:443", f"{PAGE}.evil.test", PAGE.upper(), "http://page.test"]
)
def test_another_page_is_told_nothing(origin: str) -> None:
    cors = Cors.of([PAGE])
    assert cors.answer({"origin": origin}) == {"Vary": "Origin"}
    assert cors.preflight("OPTIONS", {"origin": origin, "access-control-request-method": "POST"}) is None
    assert cors.refuses({"origin": origin})


def test_every_page_may_call_if_any_may() -> None:
    cors = Cors.of(["*"])
    assert cors.answer({"origin": OTHER})["Access-Control-Allow-Origin"] == "*"
    assert not cors.refuses({"origin": "null"})


def test_a_browser_keeps_the_answer_to_a_preflight_request() -> None:
    found = Cors.of([PAGE]).preflight("OPTIONS", {"origin": PAGE, "access-control-request-method": "POST"})
    assert found is not None
    assert found["Access-Control-Max-Age"] == "3600"
    assert found["Access-Control-Allow-Methods"] == "GET, POST"
    assert found["Access-Control-Allow-Headers"] == "content-type, authorization"


@pytest.mark.parametrize("origins", [[], ["*"], [PAGE], [PAGE, OTHER]])
def test_no_answer_allows_credentials(origins: list[str]) -> None:
    cors = Cors.of(origins)
    asked = {"origin": PAGE, "access-control-request-method": "POST"}
    names = {name.lower() for found in (cors.answer(asked), cors.preflight("OPTIONS", asked) or {}) for name in found}
    assert "access-control-allow-credentials" not in names


def test_without_pages_nothing_is_added_but_the_own_page_may_call() -> None:
    cors = Cors()
    assert cors.answer({"origin": PAGE}) == {}
    assert not cors.refuses({})
    assert not cors.refuses({"origin": "http://kanon.test:8000", "host": "KANON.test:8000"})
    assert cors.refuses({"origin": "http://kanon.test:8001", "host": "kanon.test:8000"})


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"origin": PAGE, "access-control-request-method": "POST"}),
        ("OPTIONS", {"origin": PAGE}),
        ("OPTIONS", {}),
    ],
)
def test_only_a_preflight_request_is_answered_as_one(method: str, headers: dict[str, str]) -> None:
    assert Cors.of(["*"]).preflight(method, headers) is None


ORIGINS = (
    *("https://page.test", "http://localhost:5173", "http://127.0.0.1:1", "http://[::1]:65535"),
    *("https://xn--bcher-kva.test:8443", "https://page.test:80", "http://page.test:443", "https://page.test:4430"),
)
"""Origins as browsers send them."""
NO_ORIGINS = {
    "page.test": "https://example.org",
    "ftp://page.test": "https://example.org",
    "https://": "https://example.org",
    "https://page.test:0": "https://example.org",
    "https://page.test:65536": "https://example.org",
    "https://page.test:x": "https://example.org",
    "https://page..test": "https://example.org",
    "https://page.test\n": "give https://page.test:",
    "https://page.test/": "give https://page.test:",
    "https://page.test/a/page?b#c": "give https://page.test:",
    "https://user@page.test": "give https://page.test:",
    "https://page.test:443": "give https://page.test:",
    "http://page.test:80": "give http://page.test:",
    "https://page.test:": "give https://page.test:",
    "https://page.test:08443": "give https://page.test:8443:",
    "https://PAGE.test": "give https://page.test:",
    "HTTPS://page.test": "give https://page.test:",
    "http://[::A]": "give http://[::a]:",
    "https://bücher.test": "give https://xn--bcher-kva.test:",
    "null": "serve the page",
    "https://*.page.test": "give each origin",
    "https://*": "give each origin",
}
"""What no browser sends, and what to change."""


@pytest.mark.parametrize("origin", ORIGINS)
def test_an_origin_as_browsers_send_it_is_taken(origin: str) -> None:
    assert Cors.of([origin]).allows(origin)


@pytest.mark.parametrize(("origin", "wanted"), NO_ORIGINS.items())
def test_what_no_browser_sends_is_refused_with_what_to_change(origin: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wanted)):
        Cors.of([PAGE, origin])


def test_several_origins_in_one_text_and_any_beside_others_are_refused() -> None:
    with pytest.raises(ValueError, match=r"https://example\.org"):
        Cors.of(["https://a.test,https://b.test"])
    with pytest.raises(ValueError, match="either"):
        Cors.of(["*", PAGE])
