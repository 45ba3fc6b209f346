"""Fixes for texts that cannot be parsed: SQL, C, shells, Prometheus and prose in the words of the language."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from declog.errors import Entry, elsewhere, in_flow
from declog.language.fixes.bitwise import numbers_of_negations
from declog.language.fixes.idioms import PIPE, REDUCTIONS, at_k, in_single_parentheses, of_some_values, reduction
from declog.language.fixes.library_calls import of_library
from declog.language.parser import body_of

_SPELLINGS = {
    "<>": "!=", "=>": ">=", "=<": "<=", "&&": "and", "||": "or", "!": "not",
    "\u2212": "-", "\u2013": "-", "\u2014": "-", "\u2265": ">=", "\u2264": "<=", "\u2260": "!=", "\u00d7": "*",
    "\u00b7": "*", "\u00f7": "/", "\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u2227": "and",
    "\u2228": "or", "\u00ac": "not",
}  # fmt: skip
BOUNDS = {
    "above": ">", "over": ">", "exceeds": ">", "greater": ">", "more": ">", "gt": ">", "at least": ">=", "gte": ">=",
    "ge": ">=", "below": "<", "under": "<", "less": "<", "lt": "<", "at most": "<=", "lte": "<=", "le": "<=",
    "equals": "==", "equal": "==", "eq": "==", "ne": "!=",
}  # fmt: skip
_CHOSEN = (
    r"(?i)\b(\w+\((?:(?!\bover\b)[^()])*?)\s+(?:where|when|if)\s+((?:(?!\belse\b|\bover\b)[^()])+)\)"  # `sum(x if c)`
)
_WITH_WHERE = r"\1, where=\2)"
_INDICATOR = r"(?<![\w.])1\s*\{([^{}]+)\}"  # `1{x > 0}`
_UNITS = {"k": 1000, "%": 0.01}
_BOUND_IN_PROSE = (
    r"(?:\b(?:is|are|was|gets|goes|stays|remains|becomes|drops|falls|sinks|rises|climbs|jumps|grows|spikes)\s+)?"
    rf"\b({'|'.join(BOUNDS)})\s+(?:than\s+|to\s+)?(-?[\d.]+)"
)

_SPELT = re.compile(
    rf"'[^']*'|\"[^\"]*\"|\b(?:AND|OR|NOT|IN)\b|<>|=[<>](?!=|\s*(?:{REDUCTIONS})\b)|\s*(?:&&|\|\|)\s*|!(?!=)\s*|"
    r"(?<![\w.])(\d+(?:\.\d+)?)\s*([kK%])(?!\w)|"
    f"[{''.join(sign for sign in _SPELLINGS if not sign.isascii())}]"
)


def _of_shell(match: re.Match[str]) -> str:
    """The fix for ``$reward`` and ``${reward}``."""
    text = re.sub(r"[$][{]?(\w+)[}]?", r"\1", match.string).strip()
    return f"write `{text}`"


def _of_choice(match: re.Match[str]) -> str:
    """The fix for ``c ? a : b``, also as the argument of a call."""
    parts = re.match(r"(?:\w+\()?(.+?)\?(.+?):(.+?)\)?$", match.string)
    test, yes, no = map(str.strip, parts.groups()) if parts else ("condition", "a", "b")
    return f"write `{yes} if {test} else {no}`"


def _of_condition(match: re.Match[str]) -> str | None:
    """The fix for ``mean(x where c)`` and ``mean of x if c``.

    Returns None for an ``else``, and if the parentheses of the condition do not match.
    """
    reduce, expr, condition = match[1], match[2].strip(), match[3].strip()
    if expr.count(")") > expr.count("("):  # `mean(x) where c`
        expr = expr.removesuffix(")")
    elif reduce:
        condition = condition.removesuffix(")")
    if prose := re.fullmatch(rf"({REDUCTIONS})\s+of\s+(.+)", expr):
        reduce, expr = prose.groups()
    if "else" in match.string or condition.count("(") != condition.count(")"):
        return None
    call = body_of(f"{reduce}({expr})") if reduce else None
    if isinstance(call, ast.Call) and any(word.arg == "over" for word in call.keywords):  # a value of each completion
        reduce, expr = "mean", f"{reduce}({expr})"
    reduced = {"reduce": reduction(reduce)} if reduce else {}
    return of_some_values({"expr": expr, **reduced, "where": condition})


def _of_rows(match: re.Match[str]) -> str | None:
    """The fix for ``max(x where c, over=completion)``: a value that is missing where the condition does not hold."""
    before, value, condition, behind = match.groups()
    condition = re.sub(r"(?<![=<>!])=(?!=)", "==", condition)
    if "else" in condition or len(re.findall(r"\bover\s*=", match.string)) > 1:
        return None
    return f"write `{before}{value} if {condition} else missing{behind}`"


def _by(reduce: str, expr: str, label: str) -> str:
    """The fix for ``reduce(expr) by label``: the key `by`, or an aggregate if the label is an axis."""
    reduce = reduction(reduce)
    if label in ("group", "prompt", "completion", "token"):
        over = {"completion": "token"}.get(label, "completion")
        return f"write `mean({reduce}({expr}, over={over}))`"
    return Entry({"expr": expr, "reduce": reduce, "by": label}, "write `", "`", bare=True)


def _of_text(match: re.Match[str]) -> str:
    """The fix for ``completion contains 'x'``."""
    function = "startswith" if match[3][:6] == "starts" else "contains"
    return f"write `{match[1]}{function}({match[2]}, {match[4]}){match[5]}`"


def with_signs(text: str) -> str:
    """Rewrite ``kl rises above 0.5`` as `kl > 0.5`."""
    return re.sub(_BOUND_IN_PROSE, lambda bound: f"{BOUNDS[bound[1]]} {bound[2]}", text).strip()


def spelt(text: str) -> str:
    """Rewrite operators and numbers of SQL, C and prose as the language writes them. Texts in quotes stay."""

    def plain(part: re.Match[str]) -> str:
        word = part[0].strip()
        if part[2]:
            return f"{float(part[1]) * _UNITS[part[2].lower()]:g}"
        sign = _SPELLINGS.get(word, word if word[0] in "'\"" else word.lower())
        return f" {sign} " if word in ("&&", "||") else f"{sign} " if word == "!" else sign

    return re.sub(_SPELT, plain, numbers_of_negations(text)).strip()


def _of_no_progress(match: re.Match[str]) -> str:
    """The fix for ``reward not improved for 10``: a comparison with the best value so far; of a loss with the least."""
    metric, lasting = match.groups()
    falls = re.search(r"loss|kl|perplexity|error|ppl", metric)
    return f"write `{metric} {'>' if falls else '<'} best_{metric}`, and `for: {lasting}` beside it"


_CHANGE = r"(?i)\A\s*([a-z_][\w.]*)\s+(drops|falls|decreases|rises|grows|increases)\s+(?:by\s+)?(0?\.\d+)\s*(for.*)?\Z"


def _of_change(match: re.Match[str]) -> str:
    """The fix for ``reward drops 20%``, here `reward drops 0.2`: a comparison with a metric of the step before."""
    metric, verb, share, behind = match.groups(default="")
    sign, change = ("<", -1) if verb.lower() in ("drops", "falls", "decreases") else (">", 1)
    beside = re.sub(r"for\s+(\d+).*", r", and `for: \1` beside it", behind)
    before = f"{metric.replace('.', '_')}_before"
    entry = in_flow({before: {"formula": metric, "combine": "lag(1)", "log": False}})
    condition = f"`{metric} {sign} {1 + change * float(share):g} * {before}`"
    return f"write a metric and name it here: `metrics: {entry}`, and {condition}{beside}"


def _of_span(match: re.Match[str]) -> str:
    """The fix for ``reward > 1 after step 100``, here `reward > 1 and step >= 100`."""
    before, word, step, behind = match.groups(default="")
    of_steps = f"step {'<' if word.lower() in ('before', 'until') else '>='} {step}"
    parts = [f"({part})" if re.search(r"\bor\b", part) else part for part in (before.strip(), of_steps, behind.strip())]
    return f"write `{' and '.join(filter(None, parts))}`"


_SPAN = (
    r"(?i)\A\s*((?![<>=]).*?)(?:\s+and)?\s*\b(?:step\s+)?(after|since|before|until)\s+(?:step\s+)?(\d+)"
    r"(?:\s+steps?)?(?:\s+and\s+(.+))?\s*\Z"
)


def _of_sql(match: re.Match[str]) -> str:
    """The fix for ``length BETWEEN 1 AND 9``, `1 <= length <= 9`, and for ``x LIKE '%a%'``, `contains(x, 'a')`.

    Both may be parts of a longer condition.
    """

    def bounded(part: re.Match[str]) -> str:
        value, no, low, high = part.groups()
        return f"not ({low} <= {value} <= {high})" if no else f"{low} <= {value} <= {high}"

    text = re.sub(_LIKE, lambda part: f"{'not ' * bool(part[2])}contains({part[1]}, '{part[3]}')", match.string)
    fix = f"write `{re.sub(_BETWEEN, bounded, text)}`"
    return fix + ", or startswith or matches" * (text != match.string)


_BETWEEN = r"(?i)(?<![\w.])(?!not\b)([\w.]+)\s+(not\s+)?between\s+(\S+)\s+and\s+([^\s()]+)"
_LIKE = r"(?i)(?<![\w.])(?!not\b)([\w.]+)\s+(not\s+)?i?like\s+['\"]%?([^%'\"]*)%?['\"]"


def with_patterns(text: str) -> str:
    """Rewrite ``x =~ 'a+'`` and ``x not ~ 'a+'`` of Perl, Ruby and SQL as calls of `matches`; ``~*`` ignores case."""

    def call(part: re.Match[str]) -> str:
        value, no, star, quote, pattern = part.groups()
        return f"{'not ' * bool(no)}matches({value}, {quote}{'(?i)' * bool(star)}{pattern}{quote})"

    return re.sub(_MATCH, call, text)


_MATCH = r"""(?i)(?<![\w.])(?!not\b)([\w.]+)\s*(not\s+)?(?:=?~(\*?)|\b(?:rlike|regexp)\b)\s*(['"])(.*?)\4"""


def _of_axis(match: re.Match[str]) -> str:
    """The fix for ``mean(x) over group``: the mean of one value per group."""
    axis = "token" if match[3] == "token" else "completion"
    return f"write `mean({match[1]}({match[2]}, over={axis}))`"


def of_filter(text: str) -> str | None:
    """The filter for ``worst(4)``, ``top(reward, 4)`` and ``best 4 by reward``; None for another text."""
    call = re.fullmatch(r"\s*(\w+)\((?:(\w+), *)?(\d+)\)\s*", text)
    match = re.match(_ROWS, text if call is None else f"{call[1]} {call[3]} by {call[2] or 'reward'}")
    return None if match is None else _filter(match)


_ROWS = (
    r"\A\s*(top|bottom|best|worst|nlargest|nsmallest|random|sample|first|head)\s+(\d+)(?:\s+(?:by|of)\s+(\w+))?\s*\Z"
)
_WORDS_OF_ROWS = elsewhere.meanings("rows")


def _filter(match: re.Match[str]) -> str:
    """The filter, in YAML, for a match of ``best 4 by reward``."""
    word = _WORDS_OF_ROWS.get(match[1], match[1])
    key = f"key: {match[3] or 'reward'}, " if word in ("top", "bottom") else ""
    return f"{{{key}{word}: {match[2]}}}"


def _of_query(match: re.Match[str]) -> str:
    """The fix for ``SELECT a, AVG(x) FROM t WHERE c GROUP BY a``."""
    label, value, condition, group = match.groups()
    call = re.fullmatch(r"(\w+)\((.+)\)", value)
    word, expr = (call[1].lower(), call[2]) if call else ("mean", value)
    keys = {"expr": expr, "reduce": reduction(word), "where": condition, "by": group or label}
    if expr in ("*", "1"):
        if condition and not keys["by"]:
            return of_some_values({**keys, "reduce": "count"})
        keys["expr"] = f"present({keys['by']})" if keys["by"] else "reward"
    return Entry({key: text for key, text in keys.items() if text}, "write `", "`", bare=True)


def _of_selector(match: re.Match[str]) -> str:
    """The fix for Prometheus' ``reward{topic="math"}``: `reward[topic == 'math']`, which chooses rows."""

    def condition(matcher: re.Match[str]) -> str:
        label, sign, value = matcher[1], matcher[2], matcher[3][1:-1]
        if "~" in sign:
            return f"{'not ' * (sign != '=~')}matches({label}, '^(?:{value})$')"
        number = re.fullmatch(r"-?\d+(\.\d+)?", value)
        return f"{label} {'!=' if sign == '!=' else '=='} {value if number else repr(value)}"

    def chosen(labels: re.Match[str]) -> str:
        matchers = re.finditer(r"(\w+)\s*(=~|!~|not ~|!=|==?)\s*(\"[^\"]*\"|'[^']*')", labels[1])
        return f"[{' and '.join(map(condition, matchers))}]"

    return f"write `{re.sub(r'[{]([^{}]*)[}]', chosen, match.string).strip()}`"


def _of_range(match: re.Match[str]) -> str:
    """The fix for Prometheus' ``rate(length[5m])``: the same call without its time span of five minutes."""
    text = match.string.replace(match[0], "").strip()
    match body_of(text):
        case ast.Call(func=ast.Name(name), args=args) if (fix := of_library(name, args)) is not None:
            return fix
    return f"write `{text}`"


def _of_several(match: re.Match[str]) -> str | None:
    """The fix for ``sum(a where c) / sum(b where c)``, calls with conditions; None for one call alone."""
    text = match.string.strip()
    return None if text == match[0].strip() else f"write `{re.sub(_CHOSEN, _WITH_WHERE, text)}`"


def _of_indicators(match: re.Match[str]) -> str:
    """The fix for ``mean(1{x > 0})``: the condition in its place, in parentheses inside of an expression."""
    text = re.sub(_INDICATOR, r"(\1)", match.string)
    return f"write `{in_single_parentheses(text.strip())}`"


# Patterns of texts that cannot be parsed, each with its fix: a template of the match, or a function of the match.
# The first pattern with a fix counts.
_TEXTS: tuple[tuple[str, str | Callable[[re.Match[str]], str | None]], ...] = (
    (rf"\A{PIPE.pattern}\Z", r"write `\2(\1)`"),
    (r"(?i)\A\s*select\s+(?:(\w+)\s*,\s*)?(.+?)(?:\s+from\s+\w+)?(?:\s+where\s+(.+?))?(?:\s+group\s+by\s+(\w+))?\s*;?\s*\Z",
        _of_query),
    (r"(?i)\A\s*(\w+)\s*\((.+?)\)\s*filter\s*\(\s*where\s+(.+)\)\s*\Z",
        lambda match: of_some_values({"expr": match[2], "reduce": reduction(match[1]), "where": match[3]})),
    (_INDICATOR, _of_indicators),
    (_CHOSEN, _of_several),
    (r"(?i)\A\s*(.+?)\s+as\s+([a-z_]\w*)\s*\Z", r"a metric's key is its name: `\2: \1`"),
    (r"\A\s*(\w+)\s*;\s*(\w+)\s*\Z", r"a metric for each: metrics: {\1: mean, \2: mean}"),
    (r"[$][{a-z]", _of_shell),
    (r"(?s)\?.*:", _of_choice),
    (r"(?i)\A\s*(\w+\()?\s*case\s+when\s+(.+?)\s+then\s+(.+?)\s+else\s+(.+?)\s+end\s*(\))?\s*\Z",
        r"write `\1\3 if \2 else \4\5`"),
    (r"(?i)\A(.*?)\b([a-z_]\w*)\s+is\s+not\s+null\b(.*)\Z", r"write `\1present(\2)\3`"),
    (r"(?i)\A(.*?)\b([a-z_]\w*)\s+(contains|includes|has|startswith|starts\s+with)\s+(['\"][^'\"]*['\"])(.*)\Z",
        _of_text),
    (r"(?i)\A(.*?)\b([a-z_]\w*)\s+is\s+null\b(.*)\Z", r"write `\1not present(\2)\3`"),
    (r"(?i)\A(.*\w\()([^()]+?)\s+(?:where|when|if)\s+([^()]+?)(,\s*over\s*=.*)\Z", _of_rows),
    (r"(?i)\A(?:\s*(\w+)\()?(.+?)\s+where\s+(.+?)\Z", _of_condition),
    (_BETWEEN, _of_sql),
    (_LIKE, _of_sql),
    (r"(?i)\A\s*(?:not\s+between|between|outside)\s+(-?[\d.]+)\s+(?:and|to)\s+(-?[\d.]+)\s*\Z",
        r"write `{below: \1, above: \2}`, for values outside"),
    (r"(?i)\A\s*(\w+\()?\s*if\s+(.+?)\s+then\s+(.+?)\s+else\s+(.+?)(\))?\s*\Z", r"write `\1\3 if \2 else \4\5`"),
    (r"\A\s*(\w+\()?if\(([^,]+),\s*([^,]+),\s*([^,]+?)\)(\))?\s*\Z", r"write `\1\3 if \2 else \4\5`"),
    (r"\A\s*(\w+)\(([^()]+)\)\s+(?:over|within|for\s+each)\s+(group|prompt|token|completion)s?\s*\Z", _of_axis),
    (r"(?i)\A(?:\s*(\w+)\()?(.+?)\s+(?:if|when)\s+(.+?)\Z", _of_condition),
    (r"\A\s*(?:(\w+)\()?([\w.]+(?:\s*[-+*/]\s*[\w.]+)*)\)?\s+(?:group(?:ed)? )?(?:by|per)\s*\(?(\w+)\)?\s*\Z",
        lambda match: _by(match[1] or "mean", match[2].strip(), match[3])),  # `mean(x) by source`
    (r"\A\s*pass@(\d+)\s*\Z", r"write `pass_at(reward > 0.5, k=\1)`"),
    (r"(?i)\A\s*(\w+)\s+by\s*\((\w+)\)\s*\(?(\w+)\)?\s*\Z", lambda match: _by(match[1], match[3], match[2])),
    (r"\w\{\s*\w+\s*(?:=|!|not ~)[^{}]*\}", _of_selector),
    (r"\[\d+(?:ms|[smhdwy])\]", _of_range),
    (_MATCH, lambda match: f"write `{with_patterns(match.string).strip()}`"),
    (r"\A\s*(?:\w+\()?\s*([^()]+?)\s*\)?\s+over\s+(?:the\s+)?last\s+(\d+)\s*\w*\s*\Z",
        lambda match: Entry({"expr": match[1], "over": "step", "combine": f"rolling({match[2]})"}, "write `", "`")),
    (_ROWS, lambda match: f"a filter is a map: {_filter(match)}"),
    (r"(?i)\A\s*(?:count|sum)\(([^()]+)\)\s*/\s*count\(\s*\*?\s*\)\s*\Z", r"write `mean(\1)`"),
    (r"\(\s*\*\s*\)", lambda match: f"name a signal: `{re.sub('[(] *[*] *[)]', '(reward)', match.string).strip()}`"),
    (r"\A\s*<\s*(-?[\d.]+)\s+or\s+>\s*(-?[\d.]+)\s*\Z", r"write `{below: \1, above: \2}`"),
    (r"\A\s*>\s*(-?[\d.]+)\s+or\s+<\s*(-?[\d.]+)\s*\Z", r"write `{above: \1, below: \2}`"),
    (r"\A\s*([<>]=?.+\b(?:and|or)\b.*?)\s*\Z", r"two conditions name their metrics: {when: kl \1}"),
    (_CHANGE, _of_change),
    (_SPAN, _of_span),
    (r"(?i)\A\s*([a-z_]\w*)\s+(?:(?:is|stays|remains)\s+)?(?:unchanged|constant)\s*\Z", r"write `\1 == lag(\1)`"),
    (r"(?i)\A\s*([a-z_]\w*)\s+(?:(?:has|is|did|does)?\s*not\s+improv\w+|stagnates|plateaus)\s+for\s+(\d+)(?:\s+\w+)*\s*\Z",
        _of_no_progress),
    (_BOUND_IN_PROSE, lambda match: f"write `{with_signs(match.string)}`"),
    (r"\A\s*p\.(\d+)\s*\Z", r"write `p\1`"),
    (rf"\A\s*({REDUCTIONS})\s+(?:of\s+)?(?!(?:{REDUCTIONS})\b)([a-z_]\w*)\s*\Z", r"write `\1(\2)`"),
)  # fmt: skip


def of_text(text: str, marked: str) -> str | None:
    """The fix for a text that cannot be parsed; None if no known idiom matches."""
    for pattern, fix in _TEXTS:
        match = re.search(pattern, text)
        if match and (answer := match.expand(fix) if isinstance(fix, str) else fix(match)) is not None:
            return answer
    if re.fullmatch(rf"\s*({REDUCTIONS}|\s)+", text):
        return f"an operator is missing before `{marked}`; several are a list: [{', '.join(text.split())}]"
    return None


# Notations of mathematics and SQL inside a text, each with its replacement: tried until the text can be parsed.
_NOTATIONS = (
    (r"\|([^|'\"]+)\|", r"abs(\1)"),  # `|ratio - 1| > 0.2`
    (r"(?<![\w.])ln(?=\s)", "log"),
    (r"(?<![\w.])(exp|log|sqrt|abs)\s+([A-Za-z_][\w.]*)(?!\s*\()", r"\1(\2)"),  # `r - 1 - log r`
    (r"\A(?![^'\"]*[(,]\s*\w+\s*=(?!=))([^=<>!'\"]+)=(?!=)", r"\1=="),
    (r"\A(?![^'\"]*[(,]\s*\w+\s*=(?!=))(.*\b(?:and|or|not)\s+\w+\s*)=(?!=)", r"\1=="),
)


def _parsable(text: str) -> str:
    """The text with the notations that Python lacks rewritten, as far as that is needed to parse it; else the text."""
    written = text
    for notation, replacement in _NOTATIONS:
        if body_of(written.strip()) is not None:
            break
        written = re.sub(notation, replacement, written)
    return text if body_of(written.strip()) is None else written


_MEANS = re.compile(r"(?i)(?<![.\w])(avg|average|median)(?=[(])")


def _completed(fix: str) -> str:
    """A fix whose texts can be parsed, and name means as the language does."""
    if isinstance(fix, Entry):
        keys = {key: _parsable(item) if key in ("expr", "where") else item for key, item in fix.keys.items()}
        return fix if keys == fix.keys else Entry(keys, *fix.around, bare=True)

    def written(match: re.Match[str]) -> str:
        named = _MEANS.sub(lambda word: reduction(word[1]), _parsable(match[1]))
        return f"write `{named}`"

    return re.sub(r"write `([^`]+)`", written, fix)


_DIVERGENCE = re.compile(r"(?i)(\b\w*(?:kl|div)\w*\([^()|]+?)\s*\|\|\s*(?=[^()|]+\))")  # `KL(p || q)`


def fix_of(message: str, plain: str, marked: str) -> str:
    """The fix for a text that cannot be parsed.

    ``message`` is Python's, ``plain`` the text, and ``marked`` the part of it at which Python stopped.
    """
    written = spelt(_DIVERGENCE.sub(r"\1, ", at_k(plain)))
    if written != plain.strip() and body_of(written) is not None:
        return f"write `{written}`"
    if (fix := of_text(written, marked)) is not None:
        return _completed(fix)
    if (here := _parsable(written)) != plain.strip():
        return _completed(f"write `{here}`")
    if "never closed" in message:
        if "\n" not in plain and "," not in plain and not plain.rstrip().endswith("("):
            return f"write `{plain.strip()}{')' * (plain.count('(') - plain.count(')'))}`"
        return "close it; inside {...}, YAML ends a value at a comma: put the expression in quotes"
    if re.search(r"(?<![=<>!])=(?!=)", plain) and "==" not in plain and "over=" not in plain:
        return "compare with `==`"
    if not marked.strip():
        return "it ends too early: a value is missing"
    word = marked[0].isalnum() or marked[0] == "_"
    return f"an operator is missing before `{marked}`" if word else f"delete `{marked}`, or put a value before it"
