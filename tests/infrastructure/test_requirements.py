"""Every installed package is pinned by hash, with all its dependencies. No file names a package index."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.infrastructure.template import ROOT

# The lock that `make lock` writes from requirements/<name>.in, where it is not requirements/<name>.txt.
ELSEWHERE = {
    "layer": "shared/requirements.txt",
    "sealing": "shared/sealing.txt",
    "credentials": "shared/credentials.txt",
    **{name: f"functions/{name}/requirements.txt" for name in ("evaluate", "gateway", "list", "sweep")},
    **{
        f"reports-{name}": f"functions/reports/{name}/requirements.txt"
        for name in ("store", "jobs", "decrypt", "aggregate", "rotate")
    },
}
PARTS = {"tools", "reports", "release", "emulator"}  # included by others, never installed alone
FOLDERS = ("requirements", "shared", "functions")

PIN = re.compile(r"[a-z0-9-]+==[\w.!+]+( ; [\w. <>=!'()]+)?( --hash=sha256:[0-9a-f]{64})+")


def locks() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.txt"))


def lines(text: str) -> list[str]:
    """Continued lines in one, without comments."""
    joined = re.sub(r"\\\n\s*", "", text)
    return [line for line in joined.splitlines() if line and not line.startswith("#")]


def problems(text: str) -> list[str]:
    """The lines that are no pin with hashes: options, indexes, hosts, paths, ranges."""
    return [line for line in lines(text) if not PIN.fullmatch(line)]


def pinned(lock: Path) -> set[str]:
    return {canonicalize_name(line.partition("==")[0]) for line in lines(lock.read_text())}


def versions(lock: Path) -> set[str]:
    """Names with versions."""
    return {line.partition(" ")[0] for line in lines(lock.read_text())}


def wanted(source: Path) -> set[str]:
    """The names a file asks for, those of the files it includes among them."""
    names = set()
    for line in lines(source.read_text()):
        included = re.fullmatch(r"-r (\S+)", line)
        names |= wanted(source.with_name(included[1])) if included else {canonicalize_name(Requirement(line).name)}
    return names


def unpinned(names: set[str]) -> set[str]:
    """What packages need on this machine, with the extras they need it with, and is not among them."""
    missing, asked = set(), {(name, "") for name in names}
    queue = list(asked)
    for name, extra in queue:
        for text in metadata.requires(name) or []:
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": extra}):
                continue
            more = {(canonicalize_name(needed.name), each) for each in ("", *needed.extras)}
            missing |= {each for each, _ in more} - names
            queue += sorted(more - asked) if canonicalize_name(needed.name) in names else []
            asked |= more
    return missing


@pytest.mark.parametrize("lock", locks(), ids=lambda lock: str(lock.relative_to(ROOT)))
def test_every_line_of_a_lock_is_one_version_with_its_hashes(lock: Path) -> None:
    assert problems(lock.read_text()) == []


@pytest.mark.parametrize(
    "spoiled",
    [
        "six",
        "six==1.17.0",
        f"six>=1.17.0 --hash=sha256:{'0' * 64}",
        f"six==1.17.0 --hash=md5:{'0' * 32}",
        f"six @ https://example.com/six.whl --hash=sha256:{'0' * 64}",
        "six @ file:///opt/six.whl",
        "--index-url https://example.com/simple",
        "--extra-index-url=https://example.com/simple",
        "--find-links /opt/wheels",
        "--trusted-host example.com",
        "-r other.txt",
        "-e .",
        "./six.whl",
    ],
)
def test_an_unpinned_line_is_found(spoiled: str) -> None:
    sound = f"six==1.17.0 ; python_full_version >= '3.12' \\\n    --hash=sha256:{'0' * 64}\n"
    assert problems(sound) == []
    assert problems(f"{sound}{spoiled}\n") == [spoiled]


def test_every_requirements_input_has_a_lock_that_pins_all_of_it() -> None:
    sources = list((ROOT / "requirements").glob("*.in"))
    assert len(sources) > len(PARTS)
    for source in sources:
        if source.stem not in PARTS:
            lock = ROOT / ELSEWHERE.get(source.stem, f"requirements/{source.stem}.txt")
            assert wanted(source) - pinned(lock) == set(), source.name


def test_every_lock_is_generated() -> None:
    written = {ROOT / ELSEWHERE.get(p.stem, f"requirements/{p.stem}.txt") for p in (ROOT / "requirements").glob("*.in")}
    locked = {lock for lock in locks() if lines(lock.read_text())}
    assert locked
    assert locked - written == set()


def test_every_shipped_dependency_is_pinned() -> None:
    # boto3 comes from the Lambda runtime; the other environments are checked by pip when they are made.
    for lock in ELSEWHERE.values():
        assert unpinned(pinned(ROOT / lock)) == set()
        assert versions(ROOT / lock) <= versions(ROOT / "requirements" / "dev.txt"), "tests see another version"
    layer = pinned(ROOT / ELSEWHERE["layer"])
    assert unpinned(layer - {"pydantic-core"}) == {"pydantic-core"}
