"""Copies of the mechanism with one bug planted: each line of text replaced must stand in the module as given.

A mutant of the plain module and one of the vectorised module are the same bug in the two ways to decide.
"""

import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType

import numpy as np

MODULES = {
    "kanon.noise": ("exact", "words", "laws"),
    "kanon.gate.mechanism": (
        "steps",
        "parameters",
        "searches",
        "tape",
        "members",
        "above_threshold",
        "columns",
        "vectorised",
    ),
}
"""What a copy is made of: modules by package, in the order of their imports."""

Patch = tuple[str, str, str]
"""Module, text in it, text in its place."""


@dataclass(frozen=True)
class Mutant:
    """A bug, and how many trials an audit may take to reject it.

    ``both`` is planted in what the two paths share, ``plain`` and ``vectorised`` in one of them.
    ``shape`` names the laws that show the bug. Planted text may use :func:`ingredients`.
    """

    name: str
    trials: int
    both: tuple[Patch, ...] = ()
    plain: tuple[Patch, ...] = ()
    vectorised: tuple[Patch, ...] = ()
    shape: str = "two-sided"

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths this bug can live in."""
        own = (("plain", self.plain), ("vectorised", self.vectorised))
        return tuple(path for path, patches in own if self.both or patches)

    @contextmanager
    def planted(self, path: str) -> Iterator[ModuleType]:
        """A copy of the mechanism with the bug."""
        with copy_of_mechanism((*self.both, *getattr(self, path))) as code:
            yield code


@contextmanager
def copy_of_mechanism(patches: tuple[Patch, ...]) -> Iterator[ModuleType]:
    """A package like ``kanon.gate.mechanism``, its source text patched, that shares nothing with it."""
    name = "mutated_mechanism"
    package = ModuleType(name)
    package.__path__ = []
    sys.modules[name] = package
    extra = ingredients()
    try:
        for module in chain.from_iterable(MODULES.values()):
            text = source_of(module)
            for _, old, new in (patch for patch in patches if patch[0] == module):
                assert old in text, f"{module}.py no longer holds the text this mutant replaces: {old!r}"
                text = text.replace(old, new)
            for copied_package in MODULES:
                text = text.replace(copied_package, name)
            copied = ModuleType(f"{name}.{module}")
            copied.__dict__.update(extra)
            sys.modules[copied.__name__] = copied
            exec(compile(text, f"<{module}, mutated>", "exec"), copied.__dict__)
            setattr(package, module, copied)
        yield package
    finally:
        for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == name]:
            del sys.modules[loaded]


def source_of(module: str) -> str:
    """The source text of a module of the mechanism."""
    package = next(package for package, modules in MODULES.items() if module in modules)
    return Path(str(import_module(f"{package}.{module}").__file__)).read_text()


# ------------------------------------------------------------------------------ what the bugs are made of


def ingredients() -> dict[str, object]:
    """What planted text may use, anew for every copy: the same bug gives the same numbers in any order of tests."""
    generator = random.Random(20_260_301)
    return {
        "GENERATOR": generator,
        "RETRIED": Retried(generator),
        "laplace": laplace,
        "laplaces": laplaces,
        "rounded_weights": rounded_weights,
        "clamped_weights": clamped_weights,
    }


def laplace(word: int, epsilon: float, low: int, high: int) -> float:
    """A continuous Laplace variable (geometric's continuous form if one-sided), cut to low..high."""
    at = (word + 0.5) / 2**64
    if low == 0:
        return -math.log1p(-at * (1 - math.exp(-epsilon * high))) / epsilon
    half = (1 - 2 * at) if at < 0.5 else (2 * at - 1)
    size = -math.log1p(-half * (1 - math.exp(-epsilon * high))) / epsilon
    return -size if at < 0.5 else size


def laplaces(words, epsilon: float, low: int, high: int):
    """:func:`laplace` of many words."""
    at, rest = (words.astype(float) + 0.5) / 2**64, 1 - math.exp(-epsilon * high)
    if low == 0:
        return -np.log1p(-at * rest) / float(epsilon)
    sizes = -np.log1p(-np.abs(1 - 2 * at) * rest) / float(epsilon)
    return np.where(at < 0.5, -sizes, sizes)


def rounded_weights(epsilon, outcomes) -> list[int]:
    """The table of a continuous Laplace variable rounded to the nearest integer."""

    def below(x: float) -> float:
        tail = math.exp(-float(epsilon) * abs(x)) / 2
        return tail if x < 0 else 1 - tail

    start = -0.5 if outcomes.start == 0 else outcomes.start - 0.5
    total = below(outcomes.stop - 0.5) - below(start)
    return [int(2**64 * (below(x + 0.5) - below(x - 0.5)) / total) for x in outcomes]


class Retried:
    """Noise that is new whenever the same set is asked for the same step again."""

    def __init__(self, generator: random.Random) -> None:
        self.attempts: Counter[object] = Counter()
        self.generator = generator

    def nu(self, noise, i: int) -> int:
        place = (noise.tapes.type_name, noise.set_key, noise.place, i)
        self.attempts[place] += 1
        if self.attempts[place] == 1:
            return noise.nu(i)
        return noise.tapes.parameters.query_law.draw(self.generator.getrandbits(64))

    def words(self, words, starts, stops, tapes, keys, steps):
        words = words.copy()
        for key, step, start, stop in zip(keys, steps.tolist(), starts.tolist(), stops.tolist(), strict=True):
            if start < stop:
                place = (tapes.type_name, key, step)
                self.attempts[place] += 1
                if self.attempts[place] > 1:
                    words[start] = self.generator.getrandbits(64)
        return words


# --------------------------------------------------------------------------- bugs that trials can show

TEST = "count + nu >= k + mu"
WORDS_TEST = "words >= bounds"
EPOCH = '(place - int.from_bytes(set_key[24:], "big")) // self.parameters.cycle'
TAPE_NAME = "SET_KEY_BYTES, set_key, 8, place"
MU_WORD = "self.tapes.words(self.set_key, self.place, 1), 0"
MUS_WORD = "words(key, place, 1)"
NUS = "query_words(key, place, begin, end)"
NU_WORD = "_word(self._pages[page], 1 + at)"
NU = "noise.nu(step - search.first)"
NEEDED = "needed = (thresholds - sizes)[owners] + left - law.min"
INDEX = "np.clip(needed, 0, len(smallest) - 1)"
WORDS = 'words = np.frombuffer(tapes, ">u8").astype(np.uint64)'

STATISTICAL = [
    Mutant(
        "wrong sign of the comparison",
        100,
        plain=(("above_threshold", TEST, "count + nu <= k + mu"),),
        vectorised=(("vectorised", WORDS_TEST, WORDS_TEST.replace(">=", "<")),),
    ),
    Mutant(
        "> instead of >=",
        500,
        plain=(("above_threshold", TEST, "count + nu > k + mu"),),
        vectorised=(("vectorised", NEEDED, NEEDED + " + 1"),),
    ),
    Mutant(
        "no threshold noise",
        1000,
        plain=(("above_threshold", TEST, "count + nu >= k"),),
        vectorised=(("vectorised", "parameters.k + mus", "parameters.k + 0 * mus"),),
    ),
    Mutant(
        "threshold noise redrawn whenever it is looked at",
        200,
        plain=(
            ("tape", "@cached_property\n    def mu", "@property\n    def mu"),
            ("tape", f"_word({MU_WORD})", "GENERATOR.getrandbits(64)"),
        ),
        vectorised=(
            (
                "vectorised",
                'np.frombuffer(words, ">u8"), side',
                'np.frombuffer(GENERATOR.randbytes(len(words)), ">u8"), side',
            ),
        ),
    ),
    Mutant(
        "threshold noise never refreshed at a restart",
        500,
        plain=(("tape", MU_WORD, "self.tapes.words(self.set_key, 0, 1), 0"),),
        vectorised=(("vectorised", MUS_WORD, "words(key, 0, 1)"),),
    ),
    Mutant(
        "the same nu at every step",
        50,
        plain=(("tape", NU_WORD, "_word(self._pages[page], 1)"),),
        vectorised=(("vectorised", NUS, "query_words(key, place, 0, 1) * (end - begin)"),),
    ),
    Mutant("the same noise in both instances", 500, both=(("tape", TAPE_NAME, TAPE_NAME.replace("place", "0")),)),
    Mutant(
        "the first nu is mu",
        1000,
        plain=(("tape", NU_WORD, "_word(self._pages[page], at)"),),
        vectorised=(("vectorised", NUS, "words(key, place, end)[8 * begin :]"),),
    ),
    Mutant("the same noise for all sets", 100, both=(("tape", TAPE_NAME, TAPE_NAME.replace("set_key", 'b""')),)),
    Mutant("the same noise for two types", 100, both=(("tape", "self.type_name.encode()", 'b""'),)),
    Mutant(
        "after a crossing the threshold noise of the search before",
        10_000,
        plain=(("tape", MU_WORD, "self.tapes.words(self.set_key, 0, 1), 0"),),
        vectorised=(("vectorised", MUS_WORD, "words(key, 0, 1)"),),
        shape="crossing",
    ),
    Mutant(
        "a tape for each epoch instead of each search",
        500,
        both=(("tape", TAPE_NAME, TAPE_NAME.replace("place", EPOCH)),),
        shape="crossing",
    ),
    Mutant(
        "the noise key of the step instead of the search",
        10_000,
        vectorised=(
            (
                "vectorised",
                "threshold_noise(parameters.threshold_law, self.tapes_of,",
                "threshold_noise(parameters.threshold_law, lambda first: self.tapes_of(max(first, step)),",
            ),
        ),
        shape="crossing",
    ),
    Mutant(
        "the sign of the threshold noise",
        100,
        plain=(("above_threshold", TEST, "count + nu >= k - mu"),),
        vectorised=(("vectorised", "parameters.k + mus", "parameters.k - mus"),),
        shape="one-sided",
    ),
    Mutant(
        "nu read at the absolute step, on pages behind the end of the tape",
        500,
        plain=(("above_threshold", NU, "noise.nu(step)"),),
        shape="crossing",
    ),
    Mutant(
        "nu indexed by absolute step in the test, by relative step in the look-ahead",
        500,
        plain=(("above_threshold", NU, "noise.nu(step % parameters.window)"),),
    ),
    Mutant(
        "nu indexed by absolute step on one tape for all instances",
        500,
        plain=(("tape", "self.tapes.words(self.set_key, self.place, 1 + ", "self.tapes.words(self.set_key, 0, 1 + "),),
        vectorised=(("vectorised", NUS, NUS.replace("place", "0")),),
    ),
    Mutant(
        "noise redrawn on a retry",
        500,
        plain=(("above_threshold", NU, "RETRIED.nu(noise, step - search.first)"),),
        vectorised=(
            (
                "vectorised",
                WORDS,
                WORDS
                + "\n    words = RETRIED.words("
                + "words, starts, stops, tapes_of(searches.firsts[0]), keys, searches.firsts + begins)",
            ),
        ),
    ),
    Mutant("scale halved", 2000, both=(("laws", "_floors(epsilon, outcomes", "_floors(2 * epsilon, outcomes"),)),
    Mutant("scale doubled", 2000, both=(("laws", "_floors(epsilon, outcomes", "_floors(epsilon / 2, outcomes"),)),
    Mutant(
        "continuous float noise",
        2000,
        plain=(
            (
                "laws",
                "return self.min + bisect_right(self.cumulative, word)",
                "return laplace(word, self.epsilon, self.min, self.max)",
            ),
        ),
        vectorised=(
            (
                "vectorised",
                'np.searchsorted(bounds, np.frombuffer(words, ">u8"), side="right")',
                'laplaces(np.frombuffer(words, ">u8"), law.epsilon, law.min, law.max) - law.min',
            ),
            ("vectorised", INDEX, f"{INDEX}.astype(int)"),
            (
                "vectorised",
                WORDS_TEST,
                "laplaces(words, law.epsilon, law.min, law.max) - law.min >= np.repeat(needed, lengths)",
            ),
        ),
    ),
]

# ------------------------------------------------------------------------- bugs that need no luck to see

RESTART = "return at - (at - phases) % cycle"

HOLD = "after = newest + parameters.restart.hold"
LASTS = "step < crossing + self.parameters.restart.hold"
PLAIN_WINDOW = "step - self.parameters.window + 1"
WINDOW = "step - parameters.window + 1"
FIRST_WINDOW = "searches.firsts - self.parameters.window + 1"
SINCE = "since = first\n"
SINCES = "(begins, begins))"
BEGINS = "begins = begins if begun is None else np.maximum(begins, begun)"
FIRST = "first = self._first_of_cycle(step)  #"

PROBED = [
    Mutant(
        "window longer by one",
        0,
        plain=(
            ("searches", PLAIN_WINDOW, PLAIN_WINDOW.replace(" + 1", "")),
            ("above_threshold", "members[0].last + parameters.window", "members[0].last + parameters.window + 1"),
        ),
        vectorised=(
            ("vectorised", WINDOW, WINDOW.replace(" + 1", "")),
            ("vectorised", FIRST_WINDOW, FIRST_WINDOW.replace(" + 1", "")),
        ),
    ),
    Mutant(
        "window shorter by one",
        0,
        plain=(("searches", PLAIN_WINDOW, PLAIN_WINDOW.replace("1", "2")),),
        vectorised=(
            ("vectorised", WINDOW, WINDOW.replace("1", "2")),
            ("vectorised", FIRST_WINDOW, FIRST_WINDOW.replace("1", "2")),
        ),
    ),
    Mutant(
        "restart one step early",
        0,
        both=(
            ("steps", "(step - phase) // window", "(step - phase + 1) // window"),
            ("steps", "instance * window + phase", "instance * window + phase - 1"),
        ),
        vectorised=(("vectorised", RESTART, RESTART.replace("phases", "phases + 1")),),
    ),
    Mutant(
        "restart one step late",
        0,
        both=(
            ("steps", "(step - phase) // window", "(step - phase - 1) // window"),
            ("steps", "instance * window + phase", "instance * window + phase + 1"),
        ),
        vectorised=(("vectorised", RESTART, RESTART.replace("phases", "phases - 1")),),
    ),
    Mutant(
        "no restart: true for ever",
        0,
        both=(("searches", "return self._cycle(crossing) == self._cycle(step)", "return True"),),
    ),
    Mutant(
        "no restart: one crossing for ever",
        0,
        plain=(
            (
                "searches",
                "and self._cycle(crossing) == instance:\n            instance += 1",
                ":\n            instance += 9",
            ),
        ),
        vectorised=(("vectorised", "newest >= begins, begins + window", "newest != NEVER, begins + 9 * window"),),
    ),
    Mutant("no latch", 0, both=(("above_threshold", "(x <= visible) &", "(x == step) &"),)),
    Mutant(
        "the next search one step too early",
        0,
        plain=(
            (
                "searches",
                "step, crossing, self.parameters.restart.hold)",
                "step, crossing, self.parameters.restart.hold - 1)",
            ),
        ),
        vectorised=(("vectorised", HOLD, f"{HOLD} - 1"),),
        shape="crossing",
    ),
    Mutant(
        "the next search one step too late",
        0,
        plain=(
            (
                "searches",
                "step, crossing, self.parameters.restart.hold)",
                "step, crossing, self.parameters.restart.hold + 1)",
            ),
        ),
        vectorised=(("vectorised", HOLD, f"{HOLD} + 1"),),
        shape="crossing",
    ),
    Mutant(
        "a status one step too long",
        0,
        both=(("searches", LASTS, LASTS.replace("<", "<=")),),
        shape="crossing",
    ),
    Mutant(
        "a status one step too short",
        0,
        both=(("searches", LASTS, f"{LASTS} - 1"),),
        shape="crossing",
    ),
    Mutant(
        "the joins of the last step of an epoch count again",
        0,
        plain=(("searches", SINCE, "since = first - 1\n"),),
        vectorised=(("vectorised", SINCES, "(begins, begins - 1))"),),
        shape="crossing",
    ),
    Mutant(
        "all joins of the window count at the beginning of an epoch",
        0,
        plain=(("searches", SINCE, "since = first - self.parameters.window\n"),),
        vectorised=(("vectorised", SINCES, "(begins, begins - window))"),),
        shape="crossing",
    ),
    Mutant(
        "the joins of the first step of an epoch do not count",
        0,
        plain=(("searches", SINCE, "since = first + 1\n"),),
        vectorised=(("vectorised", SINCES, "(begins, begins + 1))"),),
        shape="crossing",
    ),
    Mutant(
        "an epoch begins one step too late",
        0,
        plain=(
            ("searches", FIRST, "first = self._first_of_cycle(step - 1) + 1  #"),
            (
                "searches",
                "self._first_of_cycle(first) + self.parameters.cycle - 1",
                "self._first_of_cycle(first - 1) + self.parameters.cycle",
            ),
        ),
        vectorised=(("vectorised", BEGINS, "begins = first_of_cycle(np.full(len(phases), steps) - 1) + 1"),),
        shape="crossing",
    ),
    Mutant(
        "a set counts from 0 although its status outlasts the end of the epoch",
        0,
        plain=(("searches", "crossing + hold >= first", "crossing >= first"),),
        vectorised=(("vectorised", "np.where(after >= begins,", "np.where(newest >= begins,"),),
        shape="crossing",
    ),
    Mutant(
        "the clock step instead of the visible step",
        0,
        both=(("above_threshold", "asked = step if searches.parameters.restart is None else visible", "asked = step"),),
        shape="crossing",
    ),
    Mutant(
        "joins counted instead of clients",
        0,
        plain=(
            ("members", "{member.token: member.last", "{(member.token, member.last): member.last"),
            ("members", "dict.fromkeys(joined, step)", "{(token, step): step for token in joined}"),
            ("members", "Member(token, at) for token, at", "Member(token, at) for (token, _), at"),
        ),
        vectorised=(("columns", " & ~np.isin(old_owners << _TOKEN_BITS | before.members.tokens, new)", ""),),
    ),
]

# ------------------------------------------------------------------------- bugs that no sample can show


def clamped_weights(epsilon, outcomes) -> list[int]:
    """The table whose ends hold the whole tails of the untruncated law."""
    q = math.exp(-float(epsilon))
    total = (1 + q) / (1 - q) if outcomes.start else 1 / (1 - q)
    weights = [q ** abs(x) / total for x in outcomes]
    weights[-1] /= 1 - q
    weights[0] = weights[-1] if outcomes.start else weights[0]
    return [int(2**64 * p) for p in weights]


TABLES = [
    Mutant(
        "clamped tails",
        0,
        both=(
            ("laws", "weights = _floors(epsilon, outcomes, bits=256)", "weights = clamped_weights(epsilon, outcomes)"),
        ),
    ),
    Mutant(
        "missing truncation",
        0,
        both=(
            ("laws", "range(-truncation, truncation + 1)", "range(-2 * truncation, 2 * truncation + 1)"),
            ("laws", "range(truncation + 1)", "range(2 * truncation + 1)"),
        ),
    ),
    Mutant(
        "a word at a boundary goes to the outcome below",
        0,
        both=(("laws", "import bisect_right", "import bisect_left as bisect_right"),),
    ),
]

ROUNDED = Mutant(
    "noise rounded from a float",
    100_000,
    both=(("laws", "weights = _floors(epsilon, outcomes, bits=256)", "weights = rounded_weights(epsilon, outcomes)"),),
)
