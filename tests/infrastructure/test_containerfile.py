"""The Containerfile runs the service without rights, from pinned packages, and names no registry."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.infrastructure.containerfile import ROOT, Instruction, instructions

TEXT = (ROOT / "Containerfile").read_text()


def problems(text: str) -> list[str]:
    """What is wrong with a Containerfile."""
    found = instructions(text)
    by_name = {name: [each for each in found if each.name == name] for name in {each.name for each in found}}
    last = by_name.get("USER", [Instruction("USER", "root")])[-1]
    checks = {
        "it runs as root": re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", last.rest),
        "it changes something after USER": not {each.name for each in found[found.index(last) :]} & {"RUN", "COPY"}
        if last in found
        else False,
        "the data are in no volume": [each.rest for each in by_name.get("VOLUME", [])] == ["/data"],
        "its health is not checked": any("/healthz" in each.rest for each in by_name.get("HEALTHCHECK", [])),
        "a shell is between the signal and the process": [
            each for each in by_name.get("ENTRYPOINT", []) if each.rest.startswith("[") and json.loads(each.rest)
        ],
        "a file is fetched": "ADD" not in by_name and not re.search(r"curl|wget|https?://(?!127\.0\.0\.1)", text),
        "an index or a host is named": not re.search(
            r"index-url|find-links|trusted-host|^ARG BASE=\S*/", text, re.MULTILINE
        ),
        "a package is not pinned": all(
            "--no-deps" in each.rest and ("--require-hashes" in each.rest or "--no-index" in each.rest)
            for each in by_name.get("RUN", [])
            if "pip install" in each.rest
        ),
        "a secret is in the image": not re.search(r"(?i)(secret|password|token|key)\w*=", text),
    }
    return [problem for problem, good in checks.items() if not good]


def test_the_containerfile_is_sound() -> None:
    assert problems(TEXT) == []


def drop(line: str) -> Callable[[str], str]:
    return lambda text: re.sub(rf"(?m)^{line}.*\n", "", text)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (drop("USER"), "it runs as root"),
        (lambda text: text.replace("USER 10001:10001", "USER 0:0"), "it runs as root"),
        (lambda text: f"{text}USER root\n", "it runs as root"),
        (lambda text: f"{text}RUN true\n", "it changes something after USER"),
        (drop("VOLUME"), "the data are in no volume"),
        (lambda text: text.replace("/healthz", "/"), "its health is not checked"),
        (lambda text: re.sub(r"ENTRYPOINT .*", "ENTRYPOINT kanon serve", text), "a shell is between"),
        (lambda text: text.replace("COPY dist", "ADD dist"), "a file is fetched"),
        (lambda text: text.replace("ARG BASE=", "ARG BASE=registry.example.com/"), "an index or a host is named"),
        (lambda text: text.replace("--require-hashes ", ""), "a package is not pinned"),
        (lambda text: f"{text}ENV API_KEY=1\n", "a secret is in the image"),
    ],
)
def test_a_planted_weakness_is_found(spoil: Callable[[str], str], problem: str) -> None:
    assert spoil(TEXT) != TEXT
    assert any(found.startswith(problem) for found in problems(spoil(TEXT)))


def test_what_it_copies_is_there_or_made_by_make_release() -> None:
    copied = [each.rest.split()[0] for each in instructions(TEXT) if each.name == "COPY"]
    assert copied == ["requirements/serve.txt", "dist/*.whl"]
    assert (ROOT / copied[0]).is_file()
    assert "into dist/" in (ROOT / "Makefile").read_text()


def test_the_image_has_what_the_extra_needs() -> None:
    pinned = {line.partition("==")[0] for line in (ROOT / "requirements" / "serve.txt").read_text().splitlines()}
    import tomllib

    project = tomllib.loads(Path(ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["serve"], "pyjwt"]
    assert {re.split(r"[>\[]", each)[0] for each in wanted} <= pinned
    assert not pinned & {"boto3", "botocore", "ministack", "moto", "duckdb", "pyarrow", "matplotlib"}
