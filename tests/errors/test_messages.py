"""The messages of errors: their texts, and the facts of every call that reads one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import declog
from declog.errors import InputError, Problem, did_you_mean, rendered
from declog.errors.messages import PAGES, SEPARATOR, Message, filled, messages
from declog.errors.pages import CODES, page

MESSAGES = {key: message for code in CODES for key, message in messages(code).items()}
SOURCES = list(Path(declog.__file__).parent.rglob("*.py"))
KEY = re.compile(r"DL[1-9]\d\d(\.\w+)?")
PLACED = {
    "source",
    "span",
    "where",
    "related",
    "replacement",
    "arg",
    "behind",
}  # what is no fact: where a problem is
WORDS_OF_OTHERS = {"Problem", "CommError", "InputError", "RuntimeFailure", "SinkError", "UsageError"}


def texts(node: ast.AST) -> list[str]:
    """The text constants in an expression."""
    return [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of the sources, with its place."""
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield f"{file.name}:{node.lineno}", node


def keyed() -> Iterator[tuple[str, str, ast.Call]]:
    """The calls that are given a message's key, with it."""
    for place, call in calls():
        for argument in call.args:
            if isinstance(argument, ast.Constant) and str(argument.value) in MESSAGES:
                yield place, str(argument.value), call


def test_every_call_gives_the_facts_of_its_message() -> None:
    """None is missing, none is too much: no error fails for want of a fact at the moment when it is needed."""
    wrong = []
    for place, key, call in keyed():
        needed, given = MESSAGES[key].facts, {item.arg for item in call.keywords}
        if not needed <= given <= needed | PLACED:
            wrong.append((place, key, sorted(map(str, needed ^ given))))
    assert wrong == []


def test_a_call_names_a_message_and_not_a_code_alone() -> None:
    """A code has several messages, or will have; the words of others come with a code through the class itself."""
    of_codes = [
        (place, ast.unparse(call))
        for place, call in calls()
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("of", "report")
        and any(isinstance(item, ast.Constant) and re.fullmatch(r"DL\d\d\d", str(item.value)) for item in call.args)
    ]  # fmt: skip
    assert of_codes == []


def test_every_key_in_the_sources_is_a_message_that_a_call_gives() -> None:
    """A key is written out where it is used, so that a search for it finds text and place."""
    named = {text for file in SOURCES for text in texts(ast.parse(file.read_text("utf-8"))) if "." in text}
    assert {text for text in named if KEY.fullmatch(text)} - MESSAGES.keys() == set()
    assert MESSAGES.keys() - {key for _, key, _ in keyed()} == set()


def test_texts_of_errors_stand_on_their_pages() -> None:
    """An error that is made of a code alone carries words that come from elsewhere: Hydra's, another rank's."""
    assert [
        (place, ast.unparse(call))
        for place, call in calls()
        if ast.unparse(call.func) in WORDS_OF_OTHERS and any(map(KEY.fullmatch, texts(call))) and len(texts(call)) > 1
    ] == []


@pytest.mark.parametrize("code", CODES)
def test_a_code_says_what_is_wrong_in_a_line_and_has_its_messages(code: str) -> None:
    """Its title is short and without an end stop; its messages are named after it, its page begins with it."""
    title = CODES[code]
    assert "\n" not in title and not title.endswith(".") and 8 <= len(title) <= 80
    assert page(code).startswith(f"# {code}: {title}\n\n")
    assert [key for key in MESSAGES if key[:5] == code] != []


@pytest.mark.parametrize("code", CODES)
def test_each_line_below_a_page_belongs_to_a_message(code: str) -> None:
    """None is passed over since it is written otherwise; a name stands once."""
    lines = (PAGES / f"{code}.md").read_text("utf-8").partition(SEPARATOR)[2].splitlines()
    names = [line.partition(":")[0] for line in lines if not line.startswith("  ")]
    assert [f"{code}.{name}" for name in names] == list(messages(code))
    words = [word for message in messages(code).values() for part in (message.text, message.nearest, message.fix)
             for word in (part or "").split()]  # fmt: skip
    labels = {f"{name}:" for name in names}
    heads = sum(line.partition(" ")[0] in labels or line.startswith(("  nearest: ", "  fix: ")) for line in lines)
    assert len(words) + heads == len(" ".join(lines).split())


def test_titles_and_messages_are_distinguished() -> None:
    """No two codes have one title, and no two messages of a code one text and one fix."""
    assert len(set(CODES.values())) == len(CODES)
    assert len({(key[:5], message) for key, message in MESSAGES.items()}) == len(MESSAGES)


def test_messages_are_filled() -> None:
    """Facts by name or with their repr; braces of YAML and doubled ones stay."""
    facts = {"a": 1, "b": "x"}
    assert filled("{a} {b!r} {{a}} {a: {b: 1}} {...} {{a}: 1}", facts) == "1 'x' {a} {a: {b: 1}} {...} {1: 1}"
    assert Message("{a} {{c}} {x: y}", "{b!r}").facts == {"a", "b"}
    assert Message("{a}", nearest="{b}s").facts == {"a", "b", "name", "known"}


def test_a_fix_may_be_absent() -> None:
    """A fix that is a fact may be None."""
    assert rendered("DL201.key", {"key": "a", "fix": None}) == ("unknown key `a`", None)


def test_the_nearest_of_what_is_known_is_a_fix() -> None:
    """The message says which things these are."""
    facts = {"noun": "signal", "known": ["length", "reward"]}
    assert rendered("DL302.name", {**facts, "name": "rewrad"})[1] == "did you mean `reward`?"
    assert rendered("DL302.name", {**facts, "name": "x"})[1] == "one of the signals: length, reward"


def test_paths_are_texts_or_keys() -> None:
    """A text is cut at its dots; keys are kept, whatever they hold."""
    assert Problem.of("DL306.per_group", "axes.group").path == ("axes", "group")
    assert Problem.of("DL203.key", ("metrics", "a.b", 1), key="expr").path == ("metrics", "a.b", 1)


def test_an_error_with_a_message_is_of_its_class() -> None:
    """Code, message and fix."""
    error = InputError.of("DL509.late")
    assert (type(error), error.code, error.message, error.fix) == (
        InputError, "DL509", "it came after its generation was done", "await what gives it",
    )  # fmt: skip


def test_of_many_names_those_that_others_know_are_shown() -> None:
    """Class: a preset of 60 names, of which 20 are shown; a user knows its rewards, and none of its helpers."""
    helpers = [f"aux_{number}" for number in range(30)]
    shown = did_you_mean("has_digit", [*helpers, "rewards", "length", "truncated"], what="signals", otherwise="x")
    names = shown.partition("signals: ")[2].split(", ")
    assert {"rewards", "length", "truncated"} < {*names}
    assert len(names) == 21 and names[:-1] == sorted(names[:-1])
