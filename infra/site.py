"""Writes the documentation as a site: ``python -m infra.site MERMAID TEMML`` (`make site`).

MERMAID is the script that draws diagrams, TEMML the directory of what turns formulas into MathML while the site is
written. The README is the front page. The site asks no other host for anything.

Each version has a directory of its own, and its pages have a selector of all versions that stand beside it. To publish,
put the directories of earlier versions into build/site before: only that of this version is written again.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
PAGES, SITE = ROOT / "build" / "site-pages", ROOT / "build" / "site"
THIS = re.findall('^__version__ = "(.+)"$', (ROOT / "shared/kanon/__init__.py").read_text(), re.MULTILINE)[0]
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
SELECTOR = '"provider":"mike"'
"""What tells the theme's script to read versions.json. Its form is that of mike, a tool for such sites."""
LINK = re.compile(r"(\]\()(?!https:|#)([^)#]+)")
FORMULA = re.compile(
    r'(?P<open><(div|span) class="arithmatex">)\\[(\[](?P<tex>.*?)\\[)\]](?P<close></\2>)(?P<digit>\d?)', re.DOTALL
)
"""What the generator takes for a formula. If a digit follows, it is money, as in "$5-$10"."""
TAG = re.compile("<[^>]+>")
CODE = re.compile(r"<(code|pre|script)\b.*?</\1>", re.DOTALL)
TO_MATHML = """
const temml = require(process.argv[1]);
const written = JSON.parse(require("fs").readFileSync(0)).map(([tex, displayMode]) => {
  try { return [temml.renderToString(tex, { displayMode, throwOnError: true }), ""]; }
  catch (error) { return ["", error.message]; }
});
console.log(JSON.stringify(written));
"""


def copied(source: Path) -> Path:
    """Where the site has a file of the repository, relative to its top."""
    path = source.relative_to(ROOT)
    if path == Path("README.md"):
        return Path("index.md")
    return path.relative_to("docs") if path.parts[0] == "docs" else path


def page(source: Path, linked: set[Path]) -> str:
    """A page whose links fit the site; what it links to is added to `linked`."""

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        linked.add(target)
        return link[1] + os.path.relpath(copied(target), copied(source).parent)

    return LINK.sub(moved, source.read_text())


def copy_pages() -> None:
    """Copy the pages, and the files that they link to, into a directory of their own."""
    shutil.rmtree(PAGES, ignore_errors=True)
    waiting = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")}
    done: set[Path] = set()
    while waiting:
        source = waiting.pop()
        done.add(source)
        target = PAGES / copied(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            linked: set[Path] = set()
            target.write_text(page(source, linked))
            waiting |= linked - done
        else:
            shutil.copyfile(source, target)


def add_diagrams(mermaid: Path, site: Path) -> None:
    """Give the pages with diagrams the script that draws them; the theme would load it from another host."""
    shutil.copyfile(mermaid, site / "assets" / "mermaid.min.js")
    for path in site.rglob("*.html"):
        text = path.read_text()
        if 'class="mermaid"' in text:
            script = os.path.relpath(site / "assets" / "mermaid.min.js", path.parent)
            path.write_text(text.replace("</head>", f'<script src="{script}"></script></head>', 1))


def mathml(temml: Path, found: list[re.Match[str]]) -> list[tuple[str, str]]:
    """What to write for each formula of a page, and what is wrong with it, or ""."""
    tex = [html.unescape(one["tex"]).strip() for one in found]
    given = json.dumps([(formula, "<div" in one["open"]) for formula, one in zip(tex, found, strict=True)])
    command = ["node", "-e", TO_MATHML, str((temml / "temml.cjs").resolve())]
    ran = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, check=True)
    return [
        (f"${one['tex']}${one['digit']}", "")
        if one["digit"]
        else (one["open"] + written + one["close"], error and f"{formula}: {' '.join(error.split())}")
        for one, formula, (written, error) in zip(found, tex, json.loads(ran.stdout), strict=True)
    ]


def words(text: str) -> str:
    """A formula as the index of the search has it: without tags, on one line."""
    return " ".join(TAG.sub("", text).split())


def set_formulas(temml: Path, site: Path) -> list[str]:
    """Write the formulas of all pages as MathML, which browsers show without a script; what is wrong with them."""
    shutil.copyfile(temml / "Temml-Local.css", site / "assets" / "formulas.css")
    shutil.copyfile(temml / "Temml.woff2", site / "assets" / "Temml.woff2")
    search = json.loads((site / "search.json").read_text())
    wrong = []
    for path in sorted(site.rglob("*.html")):
        text, name = path.read_text(), str(path.relative_to(site))
        entries = [entry for entry in search["items"] if entry["location"].partition("#")[0] == name]
        if found := list(FORMULA.finditer(text)):
            for formula, (written, error) in zip(found, mathml(temml, found), strict=True):
                text = text.replace(formula[0], written, 1)
                for entry in entries:
                    entry["text"] = entry["text"].replace(words(formula[0]), words(written))
                wrong += [f"{name}: {error}"] if error else []
            style = os.path.relpath(site / "assets" / "formulas.css", path.parent)
            path.write_text(text.replace("</head>", f'<link rel="stylesheet" href="{style}"></head>', 1))
        if "$$" in CODE.sub("", text):
            wrong.append(f"{name}: a formula between $$ needs an empty line before and after it")
    (site / "search.json").write_text(json.dumps(search))
    return wrong


def list_versions(site: Path) -> list[str]:
    """Write what the selector reads, and a front page that leads to the newest version; the versions, newest first."""
    found = [VERSION.fullmatch(path.name) for path in site.iterdir() if path.is_dir()]
    names = [
        one[0] for one in sorted(filter(None, found), key=lambda one: [int(n) for n in one.groups()], reverse=True)
    ]
    entries = [{"version": name, "title": name, "aliases": ["latest"] * (name == names[0])} for name in names]
    (site / "versions.json").write_text(json.dumps(entries))
    newest = f"{names[0]}/index.html"
    (site / "index.html").write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>kanon</title>'
        f'<meta http-equiv="refresh" content="0; url={newest}"><a href="{newest}">kanon {names[0]}</a></html>\n'
    )
    return names


class Page(HTMLParser):
    """The addresses, and the places that a link can lead to, of a written page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses and the id of an element."""
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given:
            self.loaded.append(given["href"])
        if "src" in given:
            self.loaded.append(given["src"])


def mistakes(site: Path) -> list[str]:
    """The links without a target, and what a page would load from another host."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = []
    for path, read in pages.items():
        for address in read.links + read.loaded:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in read.loaded:
                    found.append(f"{path.relative_to(site)} loads {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            here = target in pages and unquote(parts.fragment) in {"", *pages[target].ids}
            if not (here or (target.is_file() and target.suffix != ".html")):
                found.append(f"{path.relative_to(site)} links to {address}")
    return found


def without_selector(site: Path) -> list[str]:
    """The pages of a version that have no selector of versions."""
    pages = (path for path in sorted(site.rglob("*.html")) if SELECTOR not in path.read_text().replace(" ", ""))
    return [f"{path.relative_to(site)} has no selector of versions" for path in pages]


def main() -> None:
    """Write the site; fail on a warning, a broken link, or a file of another host."""
    copy_pages()
    written = SITE / THIS
    shutil.rmtree(written, ignore_errors=True)
    builder = Path(sys.executable).with_name("zensical")
    settings = ROOT / "build" / "site.toml"  # it writes beside its settings only
    settings.write_text((ROOT / "infra" / "site.toml").read_text().replace("VERSION", THIS))
    subprocess.run([builder, "build", "--clean", "--strict", "--config-file", settings], check=True)
    add_diagrams(Path(sys.argv[1]), written)
    wrong = set_formulas(Path(sys.argv[2]), written)
    list_versions(SITE)
    if found := wrong + mistakes(SITE) + without_selector(written):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
