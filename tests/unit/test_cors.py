"""Which pages of other origins may call."""

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


@pytest.mark.parametrize(
    ("origins", "wanted"),
    [
        (["page.test"], "https://example.org"),
        (["https://page.test/"], "without a path"),
        (["https://user@page.test"], "https://example.org"),
        (["null"], "https://example.org"),
        (["https://a.test,https://b.test"], "https://example.org"),
        (["*", PAGE], "either"),
    ],
)
def test_an_origin_of_another_form_is_refused(origins: list[str], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        Cors.of(origins)
