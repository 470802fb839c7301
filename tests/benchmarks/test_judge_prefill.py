"""The prefill benchmark on short responses of a character tokenizer, and the cache it counts with."""

from __future__ import annotations

import pytest
from judge_prefill import MODES, Findings, Judge, PrefixCache, lines, measure, problem, read, shared
from trajectory.toy_tokenizers import Characters

from verl_mintrl.judges.prompts import PromptSet


class Chat(Characters):
    """One token per character, with a chat template."""

    def apply_chat_template(self, messages, **_):
        return self.encode("".join(f"[{m['role']}]{m['content']}" for m in messages), add_special_tokens=False)


LENGTHS = (2048, 4096, 8192)


@pytest.fixture(scope="module")
def findings() -> Findings:
    return measure(Chat(), LENGTHS, seeds=2)


def test_full_blocks_of_equal_beginnings_are_reused():
    cache = PrefixCache(block=4)
    assert cache.ask([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 0
    assert cache.ask([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 8
    assert cache.ask([1, 2, 3, 4, 5, 6, 7, 8]) == 4  # the last token is always computed
    assert cache.ask([1, 2, 3, 4, 0, 6, 7, 8, 9]) == 4
    assert cache.ask([0, 2, 3, 4, 5, 6, 7, 8, 9]) == 0  # later blocks alone are not


def test_common_prefix():
    assert [shared([], [1]), shared([1, 2], [1, 2, 3]), shared([1, 2], [1, 3])] == [0, 2, 1]


def test_the_shipped_prompts_let_every_review_reuse_the_one_before(findings):
    assert findings.broken == []
    for mode in MODES:
        assert findings.growth(mode, "asked") > 1.3
        for reading in findings.sessions[mode]:
            assert all(0 < bill.read < bill.asked for bill in reading.at.values())


def test_a_prompt_that_changes_in_front_is_noticed(tmp_path):
    template = tmp_path / "reviewer.txt"
    template.write_text("{{step_count}} steps.\n{{problem}}\n{{evidence}}\n{{steps}}")
    findings = Findings()
    for kind in (findings.sessions, findings.siblings, findings.strangers):
        judge = Judge(Chat(), MODES["joint"], PrefixCache())
        judge._prompts = PromptSet({"reviewer": template})
        kind["joint"] = [read(judge, Chat(), LENGTHS, seed=0)]
    assert len(findings.broken) == 3


def test_separate_roles_ask_corrector_and_verifier_about_a_wrong_step(findings):
    joint, separate = (findings.sessions[mode][0].at[8192].requests for mode in MODES)
    assert (joint, separate) == (16, 16 + 4 * 2)


def test_seeded():
    assert problem(1) == problem(1) != problem(2)


def test_table(findings):
    text = "\n".join(lines(findings))
    assert "left after reuse ~ length^" in text and text.count("joint") == len(LENGTHS) + 1
