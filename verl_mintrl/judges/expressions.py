"""Arithmetic found in free text: exact values, no ``eval``, linear time.

:func:`read` returns the stretches of a text that are arithmetic. A stretch that cannot be understood for certain
(letters as unknowns, powers, units glued to a number, mixed numbers) keeps its numbers and gets no sides, so that
nothing is ever called false because it was misread. Literals, depth and length are capped; what exceeds a cap is not
understood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 30
MAX_DEPTH = 20
MAX_TOKENS = 120  # of one stretch
_MAX_BITS = 2_048  # of any value

_TOKEN = re.compile(
    r"(?P<space>[ \t\u00a0\u2009\u202f&$€£]+|\\[,;:!])"
    r"|(?P<newline>\n|\\\\)"
    r"|(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"|(?P<break>\*\*|->|=>|[<>!=~:]=(?!=)|\\[()\[\]])"
    r"|(?P<op>[-+*/×·⋅∙÷−–]|\\(?:times|cdot|div)(?![A-Za-z]))"
    r"|(?P<open>\\left\(|\()"
    r"|(?P<close>\\right\)|\))"
    r"|(?P<equals>==?)"
    r"|(?P<word>\\?[^\W\d_]\w*)"
    r"|(?P<other>.)",
    re.DOTALL,
)
_OPERATORS = {"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/"} | {
    r"\times": "*",
    r"\cdot": "*",
    r"\div": "/",
    "plus": "+",
    "minus": "-",
    "times": "*",
    "x": "*",
    "X": "*",
}
_LABELS = frozenset("step part line equation eq case problem question example no".split())
_LINKS = frozenset("and of by to from with than over between divided plus minus times not".split())
_BEFORE = frozenset(",.;:([{*_\"'`>|!?•#→~")
_AFTER = frozenset(",.;:!?)]}*_\"'`<|\\→")
_ARITHMETIC = frozenset({"number", "op", "open", "close", "equals"})


@dataclass(frozen=True)
class Expression:
    """A value and how its outermost sum or product is made up."""

    value: Fraction
    addends: tuple[Fraction, ...]
    factors: tuple[Fraction, ...]
    operators: int = 0


@dataclass(frozen=True)
class Side:
    """One side of an equation, at ``text[start:end]``; ``decimals`` of a lone literal with a decimal point."""

    start: int
    end: int
    expression: Expression
    decimals: int = 0


@dataclass(frozen=True)
class Stretch:
    """Arithmetic at ``text[start:end]``: an equation (two sides or more), an expression (one), or not understood
    (none).

    ``doubtful`` marks wording around it that may change its meaning ("the sum of 3 and 9 + 1 = ..."); such an equation
    is believed if true and ignored if false.
    """

    start: int
    end: int
    numbers: tuple[Fraction, ...]
    sides: tuple[Side, ...] = ()
    doubtful: bool = False


@dataclass
class _Token:
    kind: str
    text: str
    start: int
    end: int


class _NotUnderstood(Exception):
    pass


def read(text: str) -> list[Stretch]:
    """The arithmetic in ``text``, in order."""
    tokens = _tokens(text)
    found, at = [], 0
    while at < len(tokens):
        if tokens[at].kind not in _ARITHMETIC:
            at += 1
            continue
        end, depth = at, 0
        while end < len(tokens) and tokens[end].kind in _ARITHMETIC | {"space"}:
            depth += {"open": 1, "close": -1}.get(tokens[end].kind, 0)
            if depth < 0:
                break
            end += 1
        while end > at and tokens[end - 1].kind == "space":
            end -= 1
        if end == at:  # a closing parenthesis of prose
            at += 1
            continue
        found.extend(_stretch(tokens, at, end))
        at = end
    return found


def _tokens(text: str) -> list[_Token]:
    """Tokens, with bullets and labels blanked, operator words made operators and wrapped equations joined."""
    tokens = [_Token(str(match.lastgroup), match[0], match.start(), match.end()) for match in _TOKEN.finditer(text)]
    line_start = True
    for index, token in enumerate(tokens):
        following = [later.kind for later in tokens[index + 1 : index + 3]]
        if token.kind == "newline":
            ahead = index + 1
            while ahead < len(tokens) and tokens[ahead].kind == "space":
                ahead += 1
            if ahead < len(tokens) and tokens[ahead].kind == "equals":
                token.kind = "space"
            line_start = True
            continue
        if token.kind == "space":
            continue
        if line_start and token.kind == "op" and following[:1] == ["space"]:
            token.kind = "bullet"
            continue
        if line_start and token.kind == "number" and _ends_label(tokens, index + 1):
            token.kind = "label"
        elif token.kind == "word" and token.text.lower() in _LABELS:
            _blank_label(tokens, index + 1)
        elif token.kind == "word" and token.text in _OPERATORS:
            _operator_word(tokens, index)
        line_start = False
    return tokens


def _ends_label(tokens: list[_Token], index: int) -> bool:
    """Whether ``. ``, ``) `` or ``: `` stands at ``index``."""
    return (
        index + 1 < len(tokens)
        and tokens[index].text in (".", ")", ":")
        and tokens[index + 1].kind in ("space", "newline")
    )


def _blank_label(tokens: list[_Token], index: int) -> None:
    """Take the number after a word such as "step" out of the arithmetic, with the dash that may follow it."""
    while index < len(tokens) and (tokens[index].kind == "space" or tokens[index].text == "#"):
        index += 1
    if index == len(tokens) or tokens[index].kind != "number":
        return
    tokens[index].kind = "label"
    index += 1
    while index < len(tokens) and tokens[index].kind == "space":
        index += 1
    if index < len(tokens) and tokens[index].text in ("-", "–", ")"):
        tokens[index].kind = "label"


def _operator_word(tokens: list[_Token], index: int) -> None:
    before = next((token.kind for token in reversed(tokens[max(0, index - 2) : index]) if token.kind != "space"), "")
    after = next((token.kind for token in tokens[index + 1 : index + 3] if token.kind != "space"), "")
    if before in ("number", "close") and after in ("number", "open"):
        tokens[index].kind = "op"


def _stretch(tokens: list[_Token], start: int, end: int) -> list[Stretch]:
    inside = [token for token in tokens[start:end] if token.kind != "space"]
    numbers = tuple(number for token in inside if (number := _number(token)) is not None)
    unread = Stretch(inside[0].start, inside[-1].end, numbers)
    if not any(token.kind == "number" for token in inside):
        return []
    if len(inside) > MAX_TOKENS or not _stands_alone(tokens, start, end):
        return [unread]
    doubtful = _doubtful(tokens, start, end)
    try:
        sides = _sides(inside)
        bullet = next((token for token in reversed(tokens[max(0, start - 2) : start]) if token.kind == "bullet"), None)
        if bullet is not None and bullet.text in "-−–" and len({side.expression.value for side in sides}) > 1:
            minus = _Token("op", "-", bullet.start, bullet.end)  # "- 5 + 3 = -2" opens with a minus, not with a bullet
            signed = _sides([minus, *inside])
            if len({side.expression.value for side in signed}) == 1:
                sides = signed
    except _NotUnderstood:
        return [unread]
    return [Stretch(sides[0].start, inside[-1].end, numbers, sides, doubtful)]


def _sides(tokens: list[_Token]) -> tuple[Side, ...]:
    sides = []
    for side in _split(tokens):
        literal = side[0].text if len(side) == 1 else ""
        decimals = len(literal.partition(".")[2])
        sides.append(Side(side[0].start, side[-1].end, _Parser(side).parse(), decimals))
    return tuple(sides)


def _split(tokens: list[_Token]) -> list[list[_Token]]:
    sides: list[list[_Token]] = [[]]
    for token in tokens:
        if token.kind == "equals":
            sides.append([])
        else:
            sides[-1].append(token)
    if not all(sides):
        raise _NotUnderstood
    return sides


def _stands_alone(tokens: list[_Token], start: int, end: int) -> bool:
    """Whether nothing next to the stretch could belong to it."""
    first = tokens[start]
    if first.kind == "op" and (first.text not in ("-", "−") or tokens[start + 1].kind == "space"):
        return False
    if start:
        before = tokens[start - 1]
        if before.kind == "word" or (before.kind == "other" and before.text not in _BEFORE):
            return False
        if (
            before.kind == "break"
            and before.text == "**"
            and start > 1
            and tokens[start - 2].kind in ("number", "close")
        ):
            return False
        if before.text == "," and start > 1 and tokens[start - 2].kind == "number":
            return False  # 1,5
        if before.kind == "space" and start > 1 and first.kind == "op":
            earlier = tokens[start - 2]
            if earlier.kind == "word" and len(earlier.text) == 1:
                return False  # x -3
    if end < len(tokens):
        after = tokens[end]
        later = tokens[end + 1].kind if end + 1 < len(tokens) else ""
        if after.kind == "word" or (after.kind == "other" and after.text not in _AFTER):
            return False
        if after.text in (",", "**") and later in ("number", "open"):
            return False
    return True


def _doubtful(tokens: list[_Token], start: int, end: int) -> bool:
    before = tokens[start - 1] if start else None
    if before is not None and before.kind == "space" and start > 1:
        before = tokens[start - 2]
    after = [token for token in tokens[end : end + 2] if token.kind != "space"]
    return (
        before is not None and before.kind == "word" and (before.text.lower() in _LINKS or len(before.text) == 1)
    ) or (bool(after) and (after[0].text == "?" or after[0].text.lower() in ("mod", "remainder", "r")))


def _number(token: _Token) -> Fraction | None:
    if token.kind != "number" or len(token.text) > MAX_DIGITS:
        return None
    digits = token.text.replace(",", "")
    if len(digits) > 1 and digits[0] == "0" and digits[1] != ".":
        return None  # 007 is part of something else
    return Fraction(digits)


class _Parser:
    """sum := product (('+' | '-') product)*; product := signed (('*' | '/') signed)*; signed := '-'* (number | '('
    sum ')')."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def parse(self) -> Expression:
        expression = self._sum()
        if self._at != len(self._tokens):
            raise _NotUnderstood
        return expression

    def _operator(self, among: str) -> str | None:
        if self._at < len(self._tokens) and self._tokens[self._at].kind == "op":
            operator = _OPERATORS.get(self._tokens[self._at].text, self._tokens[self._at].text)
            if operator in among:
                self._at += 1
                return operator
        return None

    def _sum(self) -> Expression:
        left = self._product()
        while operator := self._operator("+-"):
            right = self._product()
            if operator == "-":
                right = _negated(right)
            value = _small(left.value + right.value)
            left = Expression(value, left.addends + right.addends, (value,), left.operators + right.operators + 1)
        return left

    def _product(self) -> Expression:
        left = self._signed()
        while operator := self._operator("*/"):
            right = self._signed()
            factors = right.factors
            if operator == "/":
                if not all(factors):
                    raise _NotUnderstood  # division by zero has no value
                factors = tuple(1 / factor for factor in factors)
            value = left.value
            for factor in factors:
                value = _small(value * factor)
            left = Expression(value, (value,), left.factors + factors, left.operators + right.operators + 1)
        return left

    def _signed(self) -> Expression:
        if self._at == len(self._tokens):
            raise _NotUnderstood
        token = self._tokens[self._at]
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _NotUnderstood
        if self._operator("-"):
            expression = _negated(self._signed())
        elif token.kind == "open":
            self._at += 1
            expression = self._sum()
            if self._at == len(self._tokens) or self._tokens[self._at].kind != "close":
                raise _NotUnderstood
            self._at += 1
        else:
            number = _number(token)
            if number is None:
                raise _NotUnderstood
            self._at += 1
            expression = Expression(number, (number,), (number,))
        self._depth -= 1
        return expression


def _negated(expression: Expression) -> Expression:
    return Expression(
        -expression.value,
        tuple(-addend for addend in expression.addends),
        (-expression.factors[0], *expression.factors[1:]),
        expression.operators,
    )


def _small(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise _NotUnderstood
    return value


def write(value: Fraction, decimal: bool = False) -> str:
    """``value`` as an integer, as a finite decimal if ``decimal`` and possible, else as a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    if decimal:
        for digits in range(1, 31):
            if (value * 10**digits).denominator == 1:
                sign = "-" if value < 0 else ""
                whole, rest = divmod(abs(value.numerator * 10**digits // value.denominator), 10**digits)
                return f"{sign}{whole}.{rest:0{digits}d}"
    return f"{value.numerator}/{value.denominator}"


def is_finite_decimal(value: Fraction) -> bool:
    """Whether ``value`` can be written out in decimal places."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1
