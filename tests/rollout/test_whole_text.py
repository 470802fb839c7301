"""How the worker reads tokens: the text a tokenizer gives, with or without the way around ``transformers``."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory.toy_tokenizers import CORPUS, SPECIAL, byte_level, sentencepiece_like
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def whole_text() -> Any:
    import verl.trainer.ppo.v1.agent_loop_tq  # noqa: F401  # first: it loads the plugin, whose modules import parts of verl

    from verl_mintrl.rollout.worker import whole_text

    return whole_text


def fast(make: Any, kind: type[PreTrainedTokenizerFast] = PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    return kind(tokenizer_object=make().backend, additional_special_tokens=SPECIAL)


def plainly(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like])
@pytest.mark.parametrize("clean_up", [False, True])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_tokenizer_behind_a_fast_one_gives_the_same_text(whole_text, make, clean_up, data):
    tokenizer = fast(make)
    tokenizer.clean_up_tokenization_spaces = clean_up
    decode = whole_text(tokenizer)
    assert decode.func == tokenizer.backend_tokenizer.decode
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 2), max_size=40))  # also ids without a token
    assert decode(ids) == plainly(tokenizer, ids)
    for text in (*CORPUS, f"a , b . {SPECIAL[1]}\n", ""):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert decode(ids) == plainly(tokenizer, ids)


class Loud(PreTrainedTokenizerFast):
    def _decode(self, *args: Any, **kwargs: Any) -> str:
        return super()._decode(*args, **kwargs).upper()


class Quoted(PreTrainedTokenizerFast):
    def decode(self, *args: Any, **kwargs: Any) -> str:
        return f"'{super().decode(*args, **kwargs)}'"


@pytest.mark.parametrize("make", [ByT5Tokenizer, partial(fast, byte_level, Loud), partial(fast, byte_level, Quoted)])
def test_a_tokenizer_that_decodes_in_a_way_of_its_own_is_asked_itself(whole_text, make):
    tokenizer = make()
    ids = tokenizer.encode(f"für alle x . {tokenizer.all_special_tokens[0]} 🙂", add_special_tokens=False)
    assert whole_text(tokenizer)(ids) == plainly(tokenizer, ids) != ""
    assert whole_text(tokenizer).func == tokenizer.decode


def test_anything_with_the_methods_of_a_tokenizer_will_do(whole_text):
    ids = byte_level().encode(CORPUS[2] + SPECIAL[1], add_special_tokens=False)
    assert whole_text(byte_level())(ids) == CORPUS[2] + SPECIAL[1]
