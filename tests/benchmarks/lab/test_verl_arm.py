"""Tier 1 refuses what it cannot run as tier 2 does, before anything starts."""

from __future__ import annotations

import pytest
from lab.arms import ARMS
from lab.suites import experiment
from lab.verl_arm import main, overrides


@pytest.mark.parametrize("name", ["rti", "vcv_hard", "self_hard", "mentor_hard", "grpo_strong"])
def test_arms_of_tier_2_only(name, monkeypatch):
    monkeypatch.setattr("sys.argv", ["verl_arm.py", name])
    with pytest.raises(SystemExit, match=f"{name} runs in tier 2 only"):
        main()


def test_judges_of_verl_are_those_of_the_arm():
    lines = list(overrides(experiment("rti_shown_gold_unverified", 0)))
    assert "intervention.judge.function=lab.correctors:INFORMED.review" in lines
    assert "intervention.judge.evidence=gold" in lines
    assert "intervention.judge.evidence_column=reward_model.ground_truth" in lines
    assert "intervention=rti" in lines and ARMS["rti_shown_gold_unverified"].preset == "rti"
