"""Tokenizer, texts and training of the policy."""

import json
import random
import string
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lab import examine, pretrain, tasks
from lab.corpus import Flaws, Mixture, texts, write_solution
from lab.tokenizer import END, PAD, build_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_mintrl.trajectory.spans import Author, Trajectory
from verl_mintrl.trajectory.splice import encode_correction, splice
from verl_mintrl.trajectory.text import TokenText

TOKENIZER = build_tokenizer()
TINY = replace(pretrain.POLICY, hidden=64, intermediate=64, layers=1, heads=2, updates=3, batch=4, threads=1)


def decode(ids: list[int]) -> str:
    return TOKENIZER.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def test_every_character_is_a_token_of_its_own() -> None:
    text = string.printable
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert len(ids) == len(text)
    assert decode(ids) == text


@given(st.text(max_size=40))
def test_any_text_comes_back(text: str) -> None:
    text = text.replace(PAD, "").replace(END, "")
    assert decode(TOKENIZER.encode(text, add_special_tokens=False)) == text


def test_a_prompt_is_the_question_and_nothing_else() -> None:
    messages = [{"role": "user", "content": "3b8="}]
    assert TOKENIZER.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == "3b8="
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id


def test_a_correction_is_spliced_token_for_token() -> None:
    written = "03b8=11\n11c7=08\n08d9=17\n#17"
    ids = TOKENIZER.encode(written, add_special_tokens=False)
    trajectory = Trajectory(limit=64)
    trajectory.append(ids, Author.POLICY)
    text = TokenText(decode)
    text.extend(ids)
    splice(trajectory, text, written.index("11c7"), "11c7=18\n", lambda part: encode_correction(TOKENIZER, part))
    assert decode(trajectory.ids) == "03b8=11\n11c7=18\n"


def test_a_solver_without_flaws_is_right() -> None:
    rng = random.Random(0)
    for _ in range(100):
        terms = tasks.draw_terms(rng.randint(2, 12), rng)
        assert write_solution(terms, Flaws(0.0, 0.0, 0.0), rng) == tasks.solution(terms)


def test_a_solver_with_flaws_falls_into_traps_and_nothing_else() -> None:
    rng = random.Random(1)
    right = {traps: [0, 0] for traps in range(5)}
    for _ in range(4000):
        terms = tasks.draw_terms(rng.randint(2, 6), rng)
        lines = tasks.split_lines(write_solution(terms, Flaws(), rng))
        assert len(lines) == len(terms)
        traps = tasks.trap_count(terms)
        if traps in right:
            right[traps][0] += tasks.score(tasks.sum_problem(terms), lines[-1])
            right[traps][1] += 1
    for traps, (successes, count) in right.items():
        assert successes / count == pytest.approx(0.5**traps, abs=0.06)


def test_texts_are_mixed_and_hold_nothing_that_is_held_out() -> None:
    pairs = list(texts(4000, Mixture(), Flaws(), random.Random(2)))
    hinted = [pair for pair in pairs if pair[0].startswith(tasks.HINT)]
    old = [pair for pair in pairs if pair[0].startswith("rev ")]
    assert len(hinted) / 4000 == pytest.approx(Mixture().hinted, abs=0.03)
    assert len(old) / 4000 == pytest.approx(Mixture().old, abs=0.03)
    assert all(tasks.first_wrong(tasks.terms_of(asked), tasks.split_lines(text)) is None for asked, text in hinted)
    assert not any(tasks.held_out(asked.removeprefix(tasks.HINT)) for asked, _ in pairs if not asked.startswith("rev "))


def test_sums_grow_longer_during_training() -> None:
    mixture = Mixture(old=0.0)
    assert [mixture.most_terms(done) for done in (0.0, 0.2, 0.4, 1.0)] == [3, 8, 13, 13]
    first = texts(100, mixture, Flaws(), random.Random(3), done=0.0)
    assert max(len(tasks.terms_of(asked.removeprefix("!"))) - 1 for asked, _ in first) == 2


def test_training_is_repeatable() -> None:
    first, losses = pretrain.train(TINY, TOKENIZER)
    second, again = pretrain.train(TINY, TOKENIZER)
    assert losses == again
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_only_responses_have_a_loss() -> None:
    ids, labels = next(pretrain.batches(TINY, TOKENIZER))
    assert ids.shape == labels.shape
    for row, label in zip(ids.tolist(), labels.tolist(), strict=True):
        learnt = [at for at, value in enumerate(label) if value >= 0]
        assert [row[at] for at in learnt] == [label[at] for at in learnt]
        assert decode(row[: learnt[0]]).endswith("=")
        assert row[learnt[-1]] == TOKENIZER.eos_token_id
        assert set(row[learnt[-1] + 1 :]) <= {TOKENIZER.pad_token_id}


def test_a_folder_is_made_once_and_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrain, "examine", lambda model, tokenizer: {"seen": True})
    target = pretrain.prepare(TINY, tmp_path / "policy")
    written = (target / "model.safetensors").stat().st_mtime_ns
    assert pretrain.prepare(TINY, target) == target
    assert (target / "model.safetensors").stat().st_mtime_ns == written
    assert json.loads((target / "report.json").read_text())["seen"]
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.config.tie_word_embeddings and model.config.head_dim == 32
    assert AutoTokenizer.from_pretrained(target).encode("3b8=", add_special_tokens=False) == TOKENIZER.encode("3b8=")
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_another_recipe_is_another_folder() -> None:
    assert pretrain.cached("policy", TINY) == pretrain.cached("policy", replace(TINY))
    assert pretrain.cached("policy", TINY) != pretrain.cached("policy", replace(TINY, flaws=Flaws(0.4)))


def test_a_policy_is_examined() -> None:
    model, _ = pretrain.train(TINY, TOKENIZER)
    found = examine.examine(model, TOKENIZER, problems=1)
    assert set(tasks.SPLITS) < set(found)
    assert 0 <= found["train"]["success"] <= 1 and found["old"]["characters"] > 0
    assert "right_steps" in found["validation_hinted"] and "right_steps" not in found["old"]
