"""Small tokenizers with the traits that break offset arithmetic, behind the methods of a Hugging Face tokenizer."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
CORPUS = [
    "Step 1: we add 3 and 4 to get 7.\n\nStep 2: multiply by 2.\n\n  foo\n\n    bar\n",
    "def f(x):\n    return x + 1\n\n\nprint(f(2))\n```python\nimport math\n```\n",
    "für alle ϕ gilt ∀x ∈ ℝ: |ϕ(x)| ≤ 1. 数学是美丽的。日本語も少し。 🙂🙂 👩‍👩‍👧 ok",
    "the quick brown fox jumps over the lazy dog, and then some more words follow here. \\boxed{42}",
]


class Toy:
    """A ``tokenizers`` tokenizer behind the interface of ``transformers``."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.all_special_tokens = SPECIAL
        self.all_special_ids = [backend.token_to_id(token) for token in SPECIAL]
        self.added_tokens_decoder = backend.get_added_tokens_decoder()

    @property
    def size(self) -> int:
        return self.backend.get_vocab_size()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(
        self, ids: list[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        assert not clean_up_tokenization_spaces
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)


@cache
def byte_level() -> Toy:
    """Byte-level BPE: every byte is a token, characters may span several, several characters may be one."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS * 4, trainer)
    return Toy(backend)


@cache
def sentencepiece_like() -> Toy:
    """Shape of Llama 2: a space is written before a text and stripped again; byte runs decode all or nothing."""
    draft = Tokenizer(models.BPE(unk_token="<unk>"))
    pieces = [text.replace(" ", "▁") for text in CORPUS]
    trainer = trainers.BpeTrainer(vocab_size=300, limit_alphabet=70, special_tokens=["<unk>"], show_progress=False)
    draft.train_from_iterator(pieces * 4, trainer)
    vocab = draft.get_vocab()
    merges = [tuple(pair) for pair in json.loads(draft.to_str())["model"]["merges"]]
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(SPECIAL)
    return Toy(backend)


class Characters:
    """One token per character."""

    size = 0x3000
    all_special_ids: tuple[int, ...] = ()
    all_special_tokens: tuple[str, ...] = ()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [ord(character) for character in text]

    def decode(
        self, ids: list[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False
    ) -> str:
        return "".join(map(chr, ids))


def decode_bytes(ids: list[int]) -> str:
    """One token per byte, undecodable ones replaced, as byte-level decoders do."""
    return bytes(ids).decode("utf-8", errors="replace")


def decode_stripping(ids: list[int]) -> str:
    """Bytes again, by a decoder that strips all whitespace from the start."""
    return decode_bytes(ids).lstrip()
