"""Every message that an error or warning of ours may give is asserted by a test.

Read from the sources alone, the product's and the tests', so that a new message without a test
fails at once: every text in a `raise`, and in what the `raise` names (the function's own variables,
the module's constants, functions that give text or an error), must be met by a literal in a test.
A literal meets the text with which it shares most characters, if it shares enough: "must be at
least 1" is said of "{key} = {value} must be at least 1" and not of "jobs = {jobs} must be at least
1", for which it takes "jobs = 0 must be at least 1". What is left of it may meet another text,
which stands within the first. Texts of equal words are one.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("dlb_gym", "baselines", "agents", "train.py")
FEWEST_CHARS = 12
"""That tell a text from others, with two words among them."""
ENOUGH_CHARS = 30
"""That a literal must share with a text of which it says less than half."""
WILD = re.compile(r"\.[*+]\??|\\[dsSwW][*+]?|(?<!\\)[()|^$\[\]]")
"""Where a regular expression, as `match` takes it, stands for other characters."""
FIELD = re.compile(r"\{[^{}]*\}")
"""Where `str.format` puts a value."""
BUILDERS = re.compile(r"\bstr\b|Error\b")
"""What a function gives that builds messages."""
EXCEPTED = {
    ("calibration row ", " ran out of buffer ", "; report this"): (
        "the buffers are made for the rows; only a fault of ours could fill them"
    ),
    ("Value error, ",): "pydantic's own words, which are cut off",
}
"""Texts that no test asserts, and why."""

Text = tuple[str, ...]
"""The literal parts of a message, between which values stand."""
Scope = ast.Module | ast.FunctionDef


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def texts(node: ast.AST) -> Iterator[tuple[int, Text]]:
    """Line and parts of the strings within a node, but for docstrings."""
    inner = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, tuple(FIELD.split(node.value))
    elif isinstance(node, ast.JoinedStr):
        yield node.lineno, tuple(str(n.value) for n in node.values if isinstance(n, ast.Constant))
        inner = [part for part in node.values if isinstance(part, ast.FormattedValue)]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        inner = []
    for child in inner:
        yield from texts(child)


def told(text: Iterable[str]) -> bool:
    """Whether these parts tell a text from others."""
    words = [word for word in " ".join(text).split() if re.match("[a-zA-Z]{2}", word)]
    return len(words) >= 2 and sum(len(part.strip()) for part in text) >= FEWEST_CHARS


@cache
def values_in(scope: Scope) -> Mapping[str, Sequence[ast.expr]]:
    """What names may be set to in a function, or at the top of a module."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in scope.body if isinstance(scope, ast.Module) else ast.walk(scope):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.For):
            targets = [node.target]
        value = getattr(node, "iter", getattr(node, "value", None))
        for each in (each for target in targets for each in ast.walk(target)):
            if isinstance(each, ast.Name) and value is not None:
                found[each.id].append(value)
    return dict(found)


class Messages:
    """The texts that the product's raises and warnings may give.

    Attributes:
        raises: Statements that raise something new, or warn.
        found: Text -> where it stands.
    """

    def __init__(self) -> None:
        self.raises = 0
        self.found: dict[Text, set[str]] = defaultdict(set)
        self._read: set[ast.AST] = set()
        self._functions: dict[str, list[tuple[Path, ast.FunctionDef]]] = defaultdict(list)
        places = [ROOT / name for name in PRODUCT]
        paths = [q for p in places for q in (sorted(p.rglob("*.py")) if p.is_dir() else [p])]
        for path in paths:
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.FunctionDef):
                    self._functions[node.name].append((path, node))
        for path in paths:
            self._look(path, tree_of(path), tree_of(path))

    def _look(self, path: Path, node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Raise) and child.exc is not None:
                self.raises += 1
                self._take(path, child.exc, scope)
            elif isinstance(child, ast.Call) and getattr(child.func, "attr", "") == "warn":
                self.raises += 1
                self._take(path, child, scope)
            self._look(path, child, child if isinstance(child, ast.FunctionDef) else scope)

    def _take(self, path: Path, node: ast.AST, scope: Scope) -> None:
        """The texts of a node and of what it names."""
        if node in self._read:
            return
        self._read.add(node)
        for line, text in texts(node):
            if told(text):
                self.found[text].add(f"{path.relative_to(ROOT)}:{line}")
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                self._take_named(path, each.id, scope)
            elif isinstance(each, ast.Call):
                self._take_built(path, each.func)

    def _take_named(self, path: Path, name: str, scope: Scope) -> None:
        local = values_in(scope).get(name, ()) if isinstance(scope, ast.FunctionDef) else ()
        for value in local:
            self._take(path, value, scope)
        for value in () if local else values_in(tree_of(path)).get(name, ()):
            if isinstance(value, ast.Constant | ast.JoinedStr) or (
                isinstance(value, ast.Dict)
                and all(isinstance(each, ast.Constant) for each in value.values)
            ):
                self._take(path, value, tree_of(path))

    def _take_built(self, path: Path, called: ast.expr) -> None:
        """What a function gives; one of this module is preferred, and methods are its own."""
        name = getattr(called, "id", getattr(called, "attr", ""))
        candidates = self._functions[name]
        own = [(where, function) for where, function in candidates if where == path]
        for where, function in own or (candidates if isinstance(called, ast.Name) else []):
            if function.returns is None or not BUILDERS.search(ast.unparse(function.returns)):
                continue
            for part in ast.walk(function):
                if isinstance(part, ast.Return) and part.value is not None:
                    self._take(where, part.value, function)


def literals() -> set[Text]:
    """What the tests say, each read as plain text and as a regular expression."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path != Path(__file__):
            for _, text in texts(tree_of(path)):
                found |= {text, tuple(part for whole in text for part in unwild(whole))}
    return found


def unwild(pattern: str) -> list[str]:
    return [re.sub(r"\\(.)", r"\1", part) for part in WILD.split(pattern)]


def overlap(before: str, after: str) -> int:
    """Characters that end the one and begin the other."""
    at = before.find(after[:1], max(0, len(before) - len(after))) if after else -1
    while at >= 0 and not after.startswith(before[at:]):
        at = before.find(after[0], at + 1)
    return len(before) - at if at >= 0 else 0


def shared(part: str, text: Text) -> list[str]:
    """What a literal's part says of a text, where the two agree as far as they overlap.

    The part may begin within a part of the text or within a value, and end likewise.
    """
    best: list[str] = []
    for first in range(-1, len(text)):
        if first >= 0 and part in text[first]:
            return [part]
        at = overlap(text[first], part) if first >= 0 else 0
        said = [part[:at]]
        for following in text[first + 1 :]:
            found = part.find(following, at)
            if found < 0:
                said.append(following[: overlap(part[at:], following)])
                break
            said.append(following)
            at = found + len(following)
        best = max(best, said, key=lambda each: sum(map(len, each)))
    return best


def met(messages: Iterable[Text], said: Iterable[Text]) -> dict[Text, set[Text]]:
    """The texts that literals meet, each with those literals."""
    by_piece: dict[str, set[Text]] = defaultdict(set)
    for message in messages:
        for piece in pieces(message):
            by_piece[piece].add(message)
    found: dict[Text, set[Text]] = defaultdict(set)
    for literal in said:
        left = literal
        while told(left):
            scores = {}
            for message in set().union(*(by_piece[p] for p in pieces(left) & by_piece.keys())):
                common = [each for part in left for each in shared(part, message) if len(each) > 1]
                if told(common):
                    chars = sum(map(len, common))
                    scores[message] = (chars, chars / sum(map(len, message)))
            best = [each for each in scores if scores[each] == max(scores.values())]
            if len(best) != 1:
                break
            chars, share = scores[best[0]]
            if share >= 0.5 or chars >= ENOUGH_CHARS:
                found[best[0]].add(literal)
            left = tuple(rest for part in left for rest in without(part, shared(part, best[0])))
    return found


def without(part: str, said: Iterable[str]) -> Iterator[str]:
    """What is left of a literal's part: words of a message within the message."""
    for each in said:
        if len(each) > 1:
            before, _, part = part.partition(each)
            yield before
    yield part


def pieces(text: Text) -> set[str]:
    """Runs of a few characters, by which texts that share none are passed over quickly."""
    return {part[k : k + 8] for part in text for k in range(len(part) - 7)}


@pytest.fixture(scope="module")
def messages() -> Messages:
    return Messages()


@pytest.fixture(scope="module")
def asserted(messages: Messages) -> dict[Text, set[Text]]:
    return met(messages.found, literals())


def test_every_message_is_asserted_by_a_test(
    messages: Messages, asserted: dict[Text, set[Text]]
) -> None:
    assert messages.raises > 250
    missing = {
        " {} ".join(text): sorted(places)
        for text, places in messages.found.items()
        if text not in asserted and text not in EXCEPTED
    }
    assert not missing, "assert each in a test of its module, by enough of its own words"


def test_exceptions_are_messages_that_no_test_asserts(
    messages: Messages, asserted: dict[Text, set[Text]]
) -> None:
    assert messages.found.keys() >= EXCEPTED.keys()
    assert not asserted.keys() & EXCEPTED.keys()


JOBS: Text = ("jobs = ", " must be at least 1")
ANY: Text = ("", " = ", " must be at least 1")
FILE: Text = ("", " has ", " columns, of which ", " are read: leave out the others")


@pytest.mark.parametrize(
    ("literal", "text"),
    [
        ("jobs = 0 must be at least 1", JOBS),
        ("jobs = .* must be at least 1", JOBS),
        ("seeds = 0 must be at least 1", ANY),
        ("must be at least 1", ANY),
        (r"a\.csv has 9 columns, of which 3 are read", FILE),
        (r"of which \d+ are read: leave out the", FILE),
        ("leave out the others", None),  # less than half
        ("are read: leave them out", None),  # says something else
        ("jobs = 0", None),  # an input looks like that too
        ("read: leave", None),  # too little
        ("a trace has 3", None),
    ],
)
def test_a_literal_meets_the_text_whose_words_it_says(literal: str, text: Text | None) -> None:
    found = met([JOBS, ANY, FILE], [(literal,), tuple(unwild(literal))])
    assert list(found) == ([] if text is None else [text])


def test_texts_are_found_wherever_messages_are_built(messages: Messages) -> None:
    whole = {"...".join(text) for text in messages.found}
    assert "jobs = ... must be at least 1" in whole  # in place
    assert "a row's sum overflows" in whole  # in a variable
    assert "spans of ... s x ... roots" in whole  # in a list of a loop
    assert "sessions that are remembered: lower affinity.cache_sessions and map_sessions" in whole
    assert any(" deep; no scenario needs that" in text for text in whole), "by a function"
    assert any("found no writable place" in text for text in whole), "a warning"
