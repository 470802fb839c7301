"""What a run leaves behind about itself."""

from __future__ import annotations

import json

import pytest
from composed import changed, compose_recipe
from omegaconf import OmegaConf

from verl_mintrl.errors import InterventionError
from verl_mintrl.manifest import Manifest

CONFIG = OmegaConf.create(
    {
        "data": {"seed": 7},
        "actor_rollout_ref": {"rollout": {"seed": 1}, "actor": {"data_loader_seed": 2}},
        "copy": "${data.seed}",
        "reward": {"api_key": "sk-1", "nested": [{"hf_token": "hf-2", "access_key": "ak-3"}], "PASSWORD": "pw-4"},
        "data_max_token": 5,
        "empty_secret": "",
    }
)


def runs(path) -> list[dict]:
    return json.loads(path.read_text())["runs"]


def test_running_then_finished(tmp_path):
    path = tmp_path / "new" / "manifest.json"
    with Manifest(CONFIG, path):
        (during,) = runs(path)
        assert during["status"] == "running"
    (after,) = runs(path)
    assert after["status"] == "finished"
    assert after["wall_clock_s"] >= 0
    assert after["seed"] == {"data": 7, "rollout": 1, "actor": 2}
    assert {"verl", "verl-mintrl", "torch", "ray", "TransferQueue"} <= after["versions"].keys()
    assert after["config"]["copy"] == 7, "interpolations are resolved"
    assert [file.name for file in path.parent.iterdir()] == ["manifest.json"]


def test_failure_is_recorded_and_not_swallowed(tmp_path):
    path = tmp_path / "manifest.json"
    with pytest.raises(InterventionError), Manifest(CONFIG, path):
        raise InterventionError("the judge is down.", "start it")
    assert runs(path)[0]["status"] == "failed: InterventionError: the judge is down. Hint: start it"


def test_earlier_runs_are_kept(tmp_path):
    path = tmp_path / "manifest.json"
    with Manifest(CONFIG, path):
        pass
    with Manifest(changed(CONFIG.copy(), {"data.seed": 8}), path):
        pass
    assert [(run["status"], run["seed"]["data"]) for run in runs(path)] == [("finished", 7), ("finished", 8)]


def test_a_killed_run_stays_visible(tmp_path):
    path = tmp_path / "manifest.json"
    Manifest(CONFIG, path).__enter__()
    with Manifest(CONFIG, path):
        pass
    assert [run["status"] for run in runs(path)] == ["running", "finished"]


def test_secrets_are_not_written(tmp_path):
    path = tmp_path / "manifest.json"
    with Manifest(CONFIG, path):
        pass
    text = path.read_text()
    for secret in ("sk-1", "hf-2", "ak-3", "pw-4"):
        assert secret not in text
    config = runs(path)[0]["config"]
    assert config["reward"]["api_key"] == "***"
    assert config["data_max_token"] == 5, "a number is no secret"
    assert config["empty_secret"] == ""


def test_a_damaged_file_does_not_stop_a_run(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text("{half a manif")
    with Manifest(CONFIG, path):
        pass
    assert runs(path)[-1]["status"] == "finished"
    assert (tmp_path / "manifest.json.damaged").read_text() == "{half a manif"


def test_config_of_a_recipe_can_be_written(tmp_path):
    path = tmp_path / "manifest.json"
    with Manifest(compose_recipe("mintrl_gated"), path):
        pass
    assert runs(path)[0]["config"]["intervention"]["only_if_control_fails"] is True


def test_what_the_judge_costs_is_added_up_over_the_run(tmp_path):
    path = tmp_path / "manifest.json"
    with Manifest(CONFIG, path):
        pass
    with Manifest(CONFIG, path) as manifest:
        manifest.count({"judge_calls": 3, "judge_cost": 0.5})
        manifest.count({"judge_calls": 4, "judge_cost": 0.25})
        assert runs(path)[1]["judge"] == {"judge_calls": 7, "judge_cost": 0.75}, "also of a run that is killed"
    assert [run["judge"] for run in runs(path)] == [{}, {"judge_calls": 7, "judge_cost": 0.75}]
