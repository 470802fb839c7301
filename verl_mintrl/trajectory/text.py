"""Text of a growing token sequence, with exact character offsets at token boundaries.

The truth is the whole-prefix decode ``decode(ids[:k])``; decoding every prefix would be quadratic. So the sequence is
read in windows between *marks*: a mark is a token boundary whose character offset is known, and every window starts one
mark before the text it is read for. The tokens before the mark are context, which absorbs what decoders do at the start
of a sequence (strip a leading space, show half a character as U+FFFD). Each window is checked against its own context:
where they disagree, a later token changed earlier text (a character became complete, a run of byte tokens became
invalid) and the mark is given up for the one before it. As a safety net against decoders that are not local at all, the
text is compared with a whole decode each time the sequence has doubled; after a mismatch everything is decoded whole.

Cost: every token is decoded a small constant number of times, whatever the length. Only where no mark can be set, in a
run of undecodable bytes (or of blanks, for a decoder that strips them), the run is decoded again at each reading of the
text.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from verl_mintrl.errors import TrajectoryError

Decode = Callable[[list[int]], str]

#: what decoders write for bytes that are not (yet) a character
REPLACEMENT = "\ufffd"

_BLOCK = 64  # tokens between marks
_CHARACTER = 4  # most tokens one character can be spread over: its UTF-8 bytes
_FIRST_CHECK = 256  # tokens at the first comparison with a whole decode


class _Mark(NamedTuple):
    token: int
    char: int
    context: int  # token where the windows read for this mark start
    before: str  # decode(ids[context:token])


class TokenText:
    """Text of token ids and the way back from character offsets to token indices.

    Args:
        decode: ids -> text. It must keep special tokens and must not clean up spaces
            (``skip_special_tokens=False, clean_up_tokenization_spaces=False``).
    """

    def __init__(self, decode: Decode) -> None:
        self.decode = decode
        self.ids: list[int] = []
        self._text = ""  # up to date if not stale; always right up to the last mark
        self._stale = False
        self._marks = [_Mark(0, 0, 0, "")]
        self._reach = _BLOCK  # tokens after the last mark before the next is tried
        self._checked = 0
        self._local = True

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Add tokens at the end; they are decoded when the text is next read."""
        self.ids.extend(ids)
        self._stale = True

    def truncate(self, n_tokens: int) -> None:
        """Keep the first ``n_tokens`` tokens.

        Raises:
            TrajectoryError: ``n_tokens`` is negative or more than there are.
        """
        if not 0 <= n_tokens <= len(self.ids):
            raise TrajectoryError(f"cannot keep {n_tokens} of {len(self.ids)} tokens.")
        del self.ids[n_tokens:]
        while self._marks[-1].token > n_tokens:
            self._marks.pop()
        self._reach = _BLOCK
        self._checked = min(self._checked, n_tokens)
        self._stale = True

    def copy(self) -> TokenText:
        """The same tokens and what has been decoded of them, in an object of its own."""
        twin = copy.copy(self)
        twin.ids, twin._marks = list(self.ids), list(self._marks)
        return twin

    @property
    def text(self) -> str:
        """``decode(ids)``; may end in U+FFFD while a character is incomplete."""
        if self._stale:
            self._refresh()
        return self._text

    def offset(self, n_tokens: int) -> int:
        """Number of characters of ``decode(ids[:n_tokens])``.

        Raises:
            TrajectoryError: ``n_tokens`` is negative or more than there are.
        """
        if not 0 <= n_tokens <= len(self.ids):
            raise TrajectoryError(f"there is no prefix of {n_tokens} tokens, only {len(self.ids)}.")
        if self._stale:
            self._refresh()
        mark = self._marks[bisect_right(self._marks, n_tokens, key=lambda mark: mark.token) - 1]
        piece = self._piece(mark, n_tokens)
        return len(self.decode(self.ids[:n_tokens])) if piece is None else mark.char + len(piece)

    def boundary(self, char_offset: int) -> tuple[int, str]:
        """Last token boundary at or before a character offset.

        Returns:
            ``(k, carry)``: the largest k for which ``decode(ids[:k])`` is a prefix of the text (so no half character)
            of at most ``char_offset`` characters, and the characters between the two, for whoever cuts there to write
            again: ``decode(ids[:k]) + carry == text[:char_offset]``.

        Raises:
            TrajectoryError: ``char_offset`` lies outside the text.
        """
        text = self.text
        if not 0 <= char_offset <= len(text):
            raise TrajectoryError(f"there is no character offset {char_offset} in {len(text)} characters.")
        number = bisect_right(self._marks, char_offset, key=lambda mark: mark.char) - 1
        mark = self._marks[number]
        lengths: dict[int, int | None] = {}

        def length(token: int) -> int | None:
            """Characters of the prefix that ends at ``token``; None if it is no prefix of the text."""
            if token not in lengths:
                piece = self._piece(mark, token)
                clean = piece is not None and text.startswith(piece, mark.char)
                lengths[token] = mark.char + len(piece) if clean and piece is not None else None
            return lengths[token]

        def guide(token: int) -> int | None:
            """A clean prefix at or shortly before ``token``; where half characters look like U+FFFD, the shortest."""
            known = length(token)
            if known and text[known - 1] != REPLACEMENT:
                return token
            for last in range(token, low, -_CHARACTER):
                near = [(length(k), -k) for k in range(last, max(last - _CHARACTER, low), -1) if length(k) is not None]
                if near:
                    return -min(near)[1]
            return None

        low, best = mark.token, mark.char
        high = self._marks[number + 1].token if number + 1 < len(self._marks) else len(self.ids) + 1
        while high - low > 2 * _CHARACTER:
            middle = guide((low + high) // 2)
            if middle is None:
                break
            reach = length(middle)
            assert reach is not None
            if reach <= char_offset:
                low, best = middle, reach
            else:
                high = middle
        for token in range(high - 1, low, -1):
            known = length(token)
            if known is not None and known <= char_offset:
                low, best = token, known
                break
        return low, text[best:char_offset]

    def _piece(self, mark: _Mark, end: int) -> str | None:
        """Text of ``ids[mark.token:end]``; None if those tokens change the text before the mark."""
        if end == mark.token:
            return ""
        window = self.decode(self.ids[mark.context : end])
        return window[len(mark.before) :] if window.startswith(mark.before) else None

    def _refresh(self) -> None:
        total = len(self.ids)
        last = self._marks[-1]
        text = self._text[: last.char]
        end = min(last.token + self._reach, total) if self._local else total
        while True:  # each turn moves ``end`` on or gives up a mark, so this ends
            last = self._marks[-1]
            piece = self._piece(last, end)
            if piece is None:
                self._marks.pop()
                text = text[: self._marks[-1].char]
            elif end == total:
                break
            elif self._seal(end, piece):
                text += piece[: self._marks[-1].char - last.char]
                self._reach = _BLOCK
                end = min(max(end + 1, self._marks[-1].token + self._reach), total)
            else:
                self._reach = 2 * max(self._reach, end - last.token)
                end = min(last.token + self._reach, total)
        self._text = text + piece
        self._stale = False
        if self._local and total >= max(_FIRST_CHECK, 2 * self._checked):
            self._checked = total
            whole = self.decode(self.ids)
            if whole != self._text:
                self._local, self._text = False, whole
                del self._marks[1:]

    def _seal(self, end: int, piece: str) -> bool:
        """Set a mark at ``end`` or before it, behind a whole character; False if nothing there can serve as context."""
        last = self._marks[-1]
        full, whole = end, len(piece.rstrip(REPLACEMENT))
        if len(piece) - whole > _CHARACTER:  # more than one incomplete character: look for the last whole one
            low = last.token
            while end - low > 1:
                middle = (low + end) // 2
                part = self._piece(last, middle)
                if part is not None and len(part) <= whole:
                    low = middle
                else:
                    end = middle
            end = low
        for token in range(end, max(end - _CHARACTER, last.token), -1):
            part = piece if token == full else self._piece(last, token)
            if not part or not piece.startswith(part) or part.endswith(REPLACEMENT):
                continue
            alone = self.decode(self.ids[last.token : token])
            if part.strip() or alone == part:  # blank context could vanish in a decoder that strips
                self._marks.append(_Mark(token, last.char + len(part), last.token, alone))
                return True
        return False
