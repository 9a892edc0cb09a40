"""The site of the documentation: its front page answers what people ask first, and its builder finds mistakes."""

import json
import re
import subprocess
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest

from infra import site
from kanon import __version__
from kanon.noise.bound import posterior
from tests.infrastructure.template import ROOT

QUESTIONS = {
    "What does it cost for five million users?": (r"five million users", r"\$\d"),
    "Can my page call it?": (r"--cors-origin|CorsOrigins",),
    "What does ε mean?": (r"10% \|",),
    "Can I delete a user?": (r"kanon operate forget",),
    "What happens when it is attacked?": (r"## When it is attacked",),
    "How do I upgrade?": (r"## Upgrading",),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_front_page_leads_to_each_answer_within_one_click(question: str) -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    (target,) = re.findall(rf"\[{re.escape(question)}\]\(([^)#]+)", text)
    answer = (ROOT / target).read_text()
    assert all(re.search(pattern, answer) for pattern in QUESTIONS[question]), target


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r'= "([\w/-]+\.md)" \}', (ROOT / "infra" / "site.toml").read_text()))
    pages = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}
    assert {str(site.copied(page)) for page in pages} == listed


def test_links_of_the_readme_and_of_pages_fit_the_site() -> None:
    linked: set[Path] = set()
    assert "](guides/deploy.md#upgrading)" in site.page(ROOT / "README.md", linked)
    assert ROOT / "docs" / "guides" / "deploy.md" in linked
    assert "](../CHANGELOG.md)" in site.page(ROOT / "docs" / "guides" / "deploy.md", set())


def test_broken_links_and_files_of_other_hosts_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html">1</a> <a href="b.html#here">2</a> <a href="#top" id="top">3</a> <a href="https://a.example">4</a>'
        '<a href="c.html">5</a> <a href="b.html#gone">6</a> <img src="https://b.example/x.png"> <img src="d.png">'
    )
    (tmp_path / "b.html").write_text('<h2 id="here">here</h2> <link href="//c.example/style.css">')
    assert site.mistakes(tmp_path) == [
        "a.html links to c.html",
        "a.html links to b.html#gone",
        "a.html loads https://b.example/x.png",
        "a.html links to d.png",
        "b.html loads //c.example/style.css",
    ]


def test_the_front_page_leads_to_the_newest_of_all_versions(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0", "assets", "0.2.11"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text("")
    assert site.list_versions(tmp_path) == ["0.10.0", "0.9.0", "0.2.11"]
    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in listed] == [
        ("0.10.0", ["latest"]),
        ("0.9.0", []),
        ("0.2.11", []),
    ]
    assert site.Page((tmp_path / "index.html").read_text()).links == ["0.10.0/index.html"]
    assert site.mistakes(tmp_path) == []


def test_this_version_is_one_that_the_selector_shows() -> None:
    assert __version__ == site.THIS
    assert site.VERSION.fullmatch(site.THIS)
    assert 'site_dir = "site/VERSION"' in (ROOT / "infra" / "site.toml").read_text()


def test_a_page_without_the_selector_of_versions_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<script>{"version": {"provider": "mike"}}</script>')
    (tmp_path / "b.html").write_text("<script>{}</script>")
    assert site.without_selector(tmp_path) == ["b.html has no selector of versions"]


def test_the_table_of_priors_is_computed() -> None:
    page = (ROOT / "docs" / "explanation" / "epsilon.md").read_text()
    rows = re.findall(r"^\| (\d+)% " + r"\| ([\d.]+)% " * 4 + r"\|$", page, re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "10", "50"]
    for prior, least, *most in rows:
        for epsilon, shown in zip(("1", "2.25", "3"), most, strict=True):
            exact = float(100 * posterior(Fraction(prior) / 100, Fraction(epsilon)))
            assert exact <= float(shown) < exact + 0.1
        exact = 100 - float(100 * posterior(1 - Fraction(prior) / 100, Fraction(3)))
        assert exact - 0.06 < float(least) <= exact


TO_HTML = """
import json, sys
from markdown import markdown
settings = json.loads(sys.argv[1])
print(markdown(sys.stdin.read(), extensions=list(settings), extension_configs=settings))
"""


def formulas(text: str, directory: Path) -> tuple[str, str, list[str]]:
    """A page with this text as the site has it, what the search finds of it, and its mistakes."""
    settings = tomllib.loads((ROOT / "infra" / "site.toml").read_text())["project"]["markdown_extensions"]
    used = {"tables": {}, "pymdownx.arithmatex": settings["pymdownx"]["arithmatex"]}
    command = [str(ROOT / ".venv-site" / "bin" / "python"), "-c", TO_HTML, json.dumps(used)]
    body = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout
    (directory / "assets").mkdir()
    (directory / "a.html").write_text(f"<head></head>{body}")
    entry = {"location": "a.html#here", "text": " ".join(re.sub("</?(div|span).*?>", "", body).split())}
    (directory / "search.json").write_text(json.dumps({"items": [entry]}))
    temml = re.findall("^TEMML := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    wrong = site.set_formulas(ROOT / "build" / temml, directory)
    (entry,) = json.loads((directory / "search.json").read_text())["items"]
    assert site.mistakes(directory) == []
    return (directory / "a.html").read_text(), entry["text"], wrong


@pytest.mark.site
def test_formulas_become_mathml_in_a_line_and_alone(tmp_path: Path) -> None:
    page, found, wrong = formulas("Let $p_1(u) < q*r*s$.\n\n$$\n\\sum_u x(u) \\le d'_1\n$$\n\nAnd so on.", tmp_path)
    assert wrong == []
    assert page.count("<math") == 2
    assert page.count('<div class="arithmatex"><math display="block"') == 1
    assert '<span class="arithmatex"><math><mrow><msub><mi>p</mi><mn>1</mn></msub>' in page
    assert 'href="assets/formulas.css"' in page
    assert not re.search(r"\$|\\|<em>", page + found)
    assert "p1(u)&lt;q∗r∗s" in found
    assert "∑ux(u)≤d1′" in found


@pytest.mark.site
def test_money_stays_text(tmp_path: Path) -> None:
    money = 'Costs $5 to $6, "$0.61 more". From $5-$10, ($200-$580) or $142 a month, $51 without.'
    table = "\n\n| load | $ a month | $ a million |\n|---|---|---|\n| 1 | $5 | $6 |\n"
    page, found, wrong = formulas(money + " Here $x$ is one formula." + table, tmp_path)
    assert wrong == []
    for text in (page, found):
        assert money in text
        assert "<th>$ a month</th>" in text
        assert "<td>$5</td>" in text
    assert page.count("<math") == 1


@pytest.mark.site
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (r"Let $\frac{1}$ be.", r"a.html: \frac{1}: Unexpected end of input"),
        ("Let $x$.\n\n$$\n\\summ_u x\n$$", r"a.html: \summ_u x: "),
        ("The bound\n$$\nx\n$$\nholds.", "a.html: a formula between $$ needs an empty line before and after it"),
    ],
)
def test_a_wrong_formula_is_named_with_its_page(text: str, said: str, tmp_path: Path) -> None:
    (wrong,) = formulas(text, tmp_path)[2]
    assert wrong.startswith(said)


@pytest.mark.site
@pytest.mark.parametrize("name", ["privacy", "crossing"])
def test_the_bounds_of_the_proofs_are_shown_as_formulas(name: str) -> None:
    written = ROOT / "build" / "site" / site.THIS
    page = (written / "proofs" / f"{name}.html").read_text()
    marks = re.findall(r"^\$\$$", (ROOT / "docs" / "proofs" / f"{name}.md").read_text(), re.MULTILINE)
    assert page.count('<math display="block"') == len(marks) / 2 > 9
    assert not re.search(r"\\(sum|varepsilon|max|qquad)", page + (written / "search.json").read_text())
