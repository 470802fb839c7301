"""The trainer between verl's rollout and verl's update: what it reads from the queue and what it writes back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from adapters import CONTROL, CORRECTED, INSERTED, SCRIPT, N, Rewards, Rollout, read_dump
from composed import compose_stock
from scripted import follow
from stub_judges import SECRET
from tensordict import TensorDict

from verl_mintrl.errors import ConfigError, InterventionError
from verl_mintrl.trajectory.spans import Author

POLICY_LOG_PROB, INSERTED_LOG_PROB = -0.5, -3.0  # the scripted servers report the former too
TREATED = range(CONTROL, N)


@dataclass
class Actor:
    """A worker group whose log-probs are known: one value on corrector tokens, another on all others."""

    tq: Any
    updates: int = 0

    def compute_log_prob(self, batch: Any) -> Any:
        data = self.tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["input_ids", "responses", "authors"]
        )
        log_probs, rows = [], zip(batch.tags, data["input_ids"], data["responses"], data["authors"], strict=True)
        for tag, tokens, response, authors in rows:
            values = torch.full((len(tokens),), POLICY_LOG_PROB)
            if not tag.get("is_padding", False):  # token i is scored at position i - 1
                at = torch.arange(len(response))[authors == Author.CORRECTOR] + len(tokens) - len(response) - 1
                values[at] = INSERTED_LOG_PROB
            log_probs.append(values)
        column = torch.nested.as_nested_tensor(log_probs, layout=torch.jagged)
        fields = TensorDict({"log_probs": column, "entropy": column.clone()}, batch_size=len(batch))
        return self.tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def update_actor(self, batch: Any) -> dict[str, Any]:
        self.updates += 1
        return {"metrics": {"mfu": [0.5], "grad_norm": [3.0]}}


@dataclass
class Learned:
    """One batch on its way to the update."""

    trainer: Any
    batch: Any
    metrics: dict[str, float]

    def column(self, name: str) -> dict[int | str, torch.Tensor]:
        """Values by session; padding rows by key."""
        data = self.trainer._fetch(self.batch, name)[name]
        return {
            key if tag.get("is_padding", False) else int(key.rsplit("_", 2)[1]): row
            for key, tag, row in zip(self.batch.keys, self.batch.tags, data.unbind(), strict=True)
        }

    def advantage(self, session: int) -> float:
        """A* of a session, on every trained token."""
        values = self.column("advantages")[session][self.column("response_mask")[session].bool()]
        assert values.numel() == 0 or (values == values[0]).all()
        return values[0].item() if values.numel() else 0.0


@pytest.fixture
def learn(queue) -> Callable[..., Learned]:
    """``learn(rollout)``: the batch as verl's ``_step_once`` takes it from the queue up to the update."""
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    from verl_mintrl.trainer import InterventionTrainerSync

    def build(done: Rollout, multiple: int = 1, first: int = 0) -> Learned:
        trainer = InterventionTrainerSync(done.config)
        trainer.tokenizer, trainer.global_steps, trainer.actor_rollout_wg = done.worker.tokenizer, 1, Actor(queue)
        batch, metrics = trainer.replay_buffer.sample(global_steps=1, partition_id="train", batch_size=1)
        assert sorted(batch.keys) == done.keys
        order = sorted(range(len(batch)), key=lambda i: batch.keys[i])
        batch.reorder([order[first], *order[:first], *order[first + 1 :]])
        batch.extra_info["temperature"] = 1.0
        batch = upsample_batch_to_divisible_size(batch, multiple, trainer.tokenizer.eos_token_id)
        batch = trainer._compute_old_log_prob(batch, metrics)
        batch = trainer._compute_advantage(batch, metrics)
        return Learned(trainer, batch, metrics)

    return build


async def test_what_the_loss_reads(roll, learn):
    learned = learn(await roll())
    columns = {name: learned.column(name) for name in ("rollout_is_weights", "old_log_probs", "advantages")}
    assert set(columns) <= set(learned.batch.fields), "workers fetch the fields of the meta they are given"
    for session in range(N):
        inserted = set(INSERTED) if session in TREATED else set()
        for position in range(len(SCRIPT)):
            corrected = position in inserted
            assert columns["rollout_is_weights"][session][position] == (-1 if corrected else 1)
            # the anchor: kappa = 0 on inserted tokens, log pi_t elsewhere
            assert columns["old_log_probs"][session][position] == (0.0 if corrected else POLICY_LOG_PROB)
    # the control sessions fail, the corrected ones succeed
    assert [learned.advantage(session) for session in range(N)] == [0, 0, 1, 1]
    assert learned.metrics["intervention/rescue_gain"] == 1
    assert learned.metrics["intervention/bonus"] == pytest.approx(1e-3 * len(INSERTED) * 3.0)


async def test_token_weights_reach_the_loss_with_the_author_in_their_sign(roll, learn, queue):
    done = await roll()
    weights = torch.linspace(0.5, 1.5, len(SCRIPT))
    column = torch.nested.as_nested_tensor([weights] * N, layout=torch.jagged)
    fields = TensorDict({"token_weights": column}, batch_size=N)
    queue.kv_batch_put(keys=done.keys, partition_id="train", fields=fields)
    found = learn(done).column("rollout_is_weights")
    sign = torch.tensor([-1.0 if position in INSERTED else 1.0 for position in range(len(SCRIPT))])
    assert torch.equal(found[0], weights)
    assert torch.equal(found[N - 1], weights * sign)


async def test_a_proxy_anchor_is_the_policy_itself(roll, learn):
    learned = learn(await roll({"intervention.anchor.mode": "proxy"}))
    values = learned.column("old_log_probs")[N - 1]
    assert {values[i].item() for i in INSERTED} == {INSERTED_LOG_PROB}
    assert learned.metrics["intervention/bonus"] == 0


async def test_plain_grpo_leaves_verl_alone(roll, learn):
    learned = learn(await roll(recipe="grpo", rewards=Rewards(lambda session, text: float(session == 0))))
    assert "rollout_is_weights" not in learned.batch.fields
    assert {value for row in learned.column("old_log_probs").values() for value in row.tolist()} == {POLICY_LOG_PROB}
    scores = torch.tensor([1.0, 0, 0, 0])
    expected = (scores - scores.mean()) / (scores.std() + 1e-6)
    assert [learned.advantage(session) for session in range(N)] == pytest.approx(expected.tolist(), abs=1e-5)


# --- log-probs nobody sampled


async def test_unscored_tokens_take_the_log_prob_of_the_actor(roll, learn):
    learned = learn(await roll())
    values = learned.column("rollout_log_probs")
    assert [values[N - 1][i].item() for i in INSERTED] == [INSERTED_LOG_PROB] * len(INSERTED)
    assert not any(row.isnan().any() for row in values.values())
    others = [value for i, value in enumerate(values[N - 1].tolist()) if i not in INSERTED]
    assert set(others) == {POLICY_LOG_PROB}


async def test_rollout_and_actor_are_compared_on_policy_tokens(roll, learn, queue):
    done = await roll()
    scored = [torch.full((len(SCRIPT),), POLICY_LOG_PROB) for _ in range(N)]
    scored[N - 1][list(INSERTED)] = -9.0  # scored in another context, say
    scored[0][0] = math.log(0.25)
    fields = TensorDict({"rollout_log_probs": torch.nested.as_nested_tensor(scored, layout=torch.jagged)}, batch_size=N)
    queue.kv_batch_put(keys=done.keys, partition_id="train", fields=fields)
    metrics = learn(done).metrics
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(math.exp(POLICY_LOG_PROB) - 0.25)
    assert metrics["training/rollout_probs_diff_valid"] == 1


# --- masked sessions

MASKING = {"intervention.judge.function": "stub_judges:broken_for_session_2", "intervention.judge.on_error": "mask"}
UNEQUAL = (0.0, 1.0, 100.0, 1.0)


@pytest.mark.parametrize("estimator", ["control", "grpo"])
async def test_a_masked_session_leaves_loss_and_baselines(roll, learn, estimator):
    changes = MASKING | {"intervention.advantage.estimator": estimator}
    learned = learn(await roll(changes, rewards=Rewards(lambda session, text: UNEQUAL[session])))
    assert learned.column("response_mask")[2].sum() == 0
    assert learned.column("advantages")[2].abs().sum() == 0
    if estimator == "control":
        expected = [0 - 1, 1 - 0, 0, 1 - 0.5]
    else:
        scores = torch.tensor([0.0, 1.0, 1.0])  # without the masked 100
        normal = ((scores - scores.mean()) / (scores.std() + 1e-6)).tolist()
        expected = [*normal[:2], 0, normal[2]]
    assert [learned.advantage(session) for session in range(N)] == pytest.approx(expected, abs=1e-5)
    assert learned.metrics["intervention/sessions_masked"] == 1
    assert learned.metrics["intervention/effective_rows"] == N - 1


@pytest.mark.parametrize("recipe", ["mintrl_const", "rti"])
async def test_an_update_without_a_session_to_learn_from_is_skipped(roll, learn, recipe):
    """A judge that is gone for a while must not end the run, whatever verl does with an empty batch."""
    changes = {
        "intervention.judge.backend": "python",
        "intervention.judge.function": "stub_judges:broken",
        "intervention.judge.on_error": "mask",
        "intervention.judge.min_calls": 1000,
    }
    if recipe == "rti":
        roles = ("corrector", "verifier")
        changes |= {f"intervention.judge.roles.{role}.function": "stub_judges:broken" for role in roles}
        changes |= {"intervention.judge.evidence": "none", "intervention.judge.evidence_column": None}
    else:
        changes["intervention.control.train"] = False
    done = await roll(changes, recipe=recipe, rewards=Rewards(lambda session, text: 0.0))
    assert not any(row.any() for row in done.column("response_mask"))
    learned = learn(done, multiple=3)
    assert learned.metrics["intervention/updates_skipped"] == 1
    assert learned.metrics["intervention/sessions_masked"] == (N if recipe == "rti" else len(TREATED))
    learned.trainer._update_actor(learned.batch, learned.metrics)
    assert learned.trainer.actor_rollout_wg.updates == 0
    learned.trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
    learned.trainer._compute_metrics(learned.batch, learned.metrics, {"step": 1.0}, global_steps=1, epoch=0)
    assert learned.metrics["critic/rewards/mean"] == 0
    learned.trainer._dump_trajectories(learned.batch, done.config.trainer.rollout_data_dir)
    assert [row["masked"] for row in read_dump(done.config, 1)].count(True) >= len(TREATED)


async def test_an_empty_control_session_is_no_baseline(roll, learn):
    calls: list[str] = []

    def policy(text: str) -> str:
        calls.append(text)
        return "" if len(calls) == 1 else follow(SCRIPT)(text)

    done = await roll(policy=policy, rewards=Rewards(lambda session, text: 100.0 if len(text) == 1 else 1.0))
    (empty,) = [record.session_id for record in done.records if record.masked]
    assert empty < CONTROL
    learned = learn(done)
    assert [learned.advantage(session) for session in range(N)] == [0] * N, "1 against the other control session's 1"
    assert learned.metrics["intervention/lone_controls"] == 1


# --- verl's padding rows: clones of the first row with other lengths


@pytest.mark.parametrize("first", [0, N - 1], ids=["control first", "intervened first"])
async def test_padding_rows_do_not_shift_our_columns(roll, learn, first):
    def policy(text: str) -> str:
        return follow(SCRIPT)(text) if "god" in text or len(policy.seen) else policy.seen.append(1) or "short\x03"

    policy.seen = []
    done = await roll(policy=policy)
    learned = learn(done, multiple=7, first=first)
    padding = [key for key in learned.column("advantages") if isinstance(key, str)]
    assert len(padding) == 3
    responses = learned.column("responses")
    assert sorted({len(row) for row in responses.values()}) == [1, len("short\x03"), len(SCRIPT)]
    for name in ("advantages", "old_log_probs", "rollout_is_weights", "rollout_log_probs", "response_mask"):
        lengths = {key: len(row) for key, row in learned.column(name).items()}
        assert lengths == {key: len(row) for key, row in responses.items()}, name
    for key in padding:
        assert learned.column("response_mask")[key].tolist() == [0]
        assert learned.column("advantages")[key].tolist() == [0]
        assert learned.column("rollout_is_weights")[key].tolist() == [1]
    negative = {
        key: [i for i, value in enumerate(row.tolist()) if value < 0]
        for key, row in learned.column("rollout_is_weights").items()
    }
    assert {key: at for key, at in negative.items() if at} == {session: list(INSERTED) for session in TREATED}
    assert [learned.advantage(session) for session in TREATED] == [1 - 0.5] * 2
    assert learned.metrics["intervention/effective_rows"] == N
    assert learned.metrics["intervention/sessions_treated"] == len(TREATED)
    written = sum(map(len, done.texts))
    assert learned.metrics["intervention/inserted_token_share"] == pytest.approx(len(TREATED) * len(INSERTED) / written)


# --- stopping


@pytest.mark.parametrize("dumps", [True, False])
async def test_on_error_fail_stops_the_run(roll, learn, dumps):
    changes = {"intervention.judge.function": "stub_judges:broken", "intervention.judge.on_error": "fail"}
    done = await roll(changes | ({} if dumps else {"trainer.rollout_data_dir": None}))
    with pytest.raises(InterventionError, match=r"the judge is broken.*intervention\.judge\.on_error"):
        learn(done)
    if dumps:
        rows = read_dump(done.config, 1)
        assert [row["session_id"] for row in rows] == list(range(N))
        assert [bool(row["fatal"]) for row in rows] == [session in TREATED for session in range(N)]
        assert rows[N - 1]["reviews"][0]["reason"] == "exception"


@pytest.mark.parametrize(
    ("limits", "stops"),
    [
        ({"max_error_rate": 0.4, "min_calls": 1}, True),
        ({"max_error_rate": 0.6, "min_calls": 1}, False),
        ({"max_error_rate": 0.4, "min_calls": 20}, False),
    ],
)
async def test_too_many_judge_errors_stop_the_run(roll, learn, limits, stops):
    changes = {
        "intervention.judge.function": "stub_judges:broken_for_session_2",
        "intervention.judge.on_error": "keep",
        "intervention.budget.max_reviews": 1,
        **{f"intervention.judge.{key}": value for key, value in limits.items()},
    }
    done = await roll(changes)
    if stops:
        with pytest.raises(InterventionError, match=r"1 of 2 judge calls failed up to step 1.*max_error_rate is 0\.4"):
            learn(done)
        assert len(read_dump(done.config, 1)) == N
    else:
        assert learn(done).metrics["intervention/judge_error_rate"] == 0.5


async def test_a_role_that_always_fails_stops_the_run_although_most_calls_succeed(roll, learn):
    """A Validator that finds most steps right would hide a Corrector of which nothing ever comes."""
    changes = {
        "intervention.judge.joint": False,
        "intervention.judge.function": "stub_judges:bad_in_focus",
        "intervention.judge.roles.corrector.function": "stub_judges:broken",
        "intervention.judge.roles.corrector.backend": "python",
        "intervention.judge.backend": "python",
        "intervention.judge.evidence": "none",
        "intervention.judge.evidence_column": None,
        "intervention.verifier.enabled": False,
        "intervention.judge.min_calls": 1,
    }
    done = await roll(changes, recipe="rti")
    with pytest.raises(InterventionError, match=r"4 of 4 corrector calls failed up to step 1 \(\{'exception': 4\}\)"):
        learn(done)


@pytest.mark.parametrize("judge", ["broken", "god_for_bad"])
async def test_what_the_judge_costs_is_counted_for_the_run(roll, learn, monkeypatch, judge):
    """Also in an update that ends the run."""
    from verl_mintrl.trainer import InterventionTrainer

    counted: list[dict[str, float]] = []
    monkeypatch.setattr(InterventionTrainer, "manifest", SimpleNamespace(count=counted.append))
    changes = {"intervention.judge.function": f"stub_judges:{judge}", "intervention.judge.on_error": "fail"}
    done = await roll(changes)
    if judge == "broken":
        with pytest.raises(InterventionError):
            learn(done)
    else:
        learn(done)
    (costs,) = counted
    failed = len(TREATED) if judge == "broken" else 0
    assert costs["judge_errors/exception"] == costs["errors_validator"] == costs["reviews_failed"] == failed
    assert costs["judge_calls"] == costs["calls_validator"] >= len(TREATED)


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, "0.5", [1.0, 2.0]], ids=repr)
async def test_a_reward_that_is_no_number_stops_the_run(roll, learn, reward):
    done = await roll(rewards=Rewards(lambda session, text: reward if session == 1 else 0.0))
    assert [bool(record.fatal) for record in done.records] == [session == 1 for session in range(N)]
    assert done.column("response_mask")[1].sum() == 0
    with pytest.raises(InterventionError) as caught:
        learn(done)
    assert f"reward of session 1 of uid {done.uid} is {reward!r}" in str(caught.value)
    assert "reward.custom_reward_function" in str(caught.value)
    assert len(read_dump(done.config, 1)) == N


# --- dump


async def test_the_dump_tells_what_was_learned(roll, learn):
    done = await roll()
    learned = learn(done)
    learned.trainer._dump_trajectories(learned.batch, done.config.trainer.rollout_data_dir)
    rows = read_dump(done.config, 1)
    assert [row["response"] for row in rows] == [SCRIPT] * CONTROL + [CORRECTED] * len(TREATED)
    assert [row["advantage"] for row in rows] == [0, 0, 1, 1]
    assert [row["reward"] for row in rows] == [0, 0, 1, 1]
    assert rows[0]["prompt"] == "say it?"
    last = rows[N - 1]
    assert last["uid"] == done.uid
    assert [i for i, author in enumerate(last["authors"]) if author == Author.CORRECTOR] == list(INSERTED)
    assert [last["anchor"][i] for i in INSERTED] == [0.0] * len(INSERTED)
    assert [last["rollout_log_probs"][i] for i in INSERTED] == [INSERTED_LOG_PROB] * len(INSERTED)
    assert [tuple(review["inserted"]) for review in last["reviews"] if review["inserted"]] == [(6, 12)]


@pytest.mark.parametrize("public", [True, False])
async def test_a_public_dump_gives_nothing_away(roll, learn, public):
    """What is privileged may stand in rejected corrections and in errors; a public dump holds neither."""
    changes = {
        "intervention.public_dump": public,
        "intervention.judge.function": "stub_judges:telltale",
        "intervention.judge.evidence": "gold",
        "intervention.judge.evidence_column": "reward_model.ground_truth",
    }
    done = await roll(changes, row={"reward_model": {"ground_truth": SECRET, "style": "rule"}})
    learned = learn(done)
    learned.trainer._dump_trajectories(learned.batch, done.config.trainer.rollout_data_dir)
    rows = read_dump(done.config, 1)
    reasons = {review["reason"] for row in rows for review in row["reviews"]}
    assert {"leak", "exception"} <= reasons
    assert {row["public"] for row in rows} == {public}
    assert (SECRET in json.dumps(rows)) != public


async def test_a_public_dump_keeps_what_stands_in_a_response(roll, learn):
    done = await roll({"intervention.public_dump": True})
    learned = learn(done)
    learned.trainer._dump_trajectories(learned.batch, done.config.trainer.rollout_data_dir)
    reviews = [review for row in read_dump(done.config, 1) for review in row["reviews"]]
    assert {review["correction"] for review in reviews if review["inserted"]} == {"god."}


# --- the rest


async def test_prompts_at_the_limit_are_counted(roll, learn):
    row = {"raw_prompt": [{"role": "user", "content": "a prompt that is longer than sixteen characters"}]}
    done = await roll(row=row)
    learned = learn(done)
    assert learned.metrics["intervention/prompts_at_limit"] == N
    assert len({tuple(prompt.tolist()) for prompt in done.column("prompts")}) == 1, "cut alike in both loops"
    assert learn(await roll()).metrics["intervention/prompts_at_limit"] == 0


async def test_update(roll, learn):
    learned = learn(await roll({"actor_rollout_ref.actor.grad_clip": 1.0}))
    sums = {"actor/regression/drift_abs_min": 0.5}
    learned.metrics.update(sums)
    learned.trainer._update_actor(learned.batch, learned.metrics)
    assert learned.trainer.actor_rollout_wg.updates == 1
    assert learned.metrics["actor/grad_norm"] == 3
    assert learned.metrics["intervention/grad_clipped"] == 1
    assert learned.metrics["actor/regression/drift_abs_min"] == 0.5


def test_verl_sees_a_sync_trainer(config, queue):
    from verl_mintrl.trainer import POLL_INTERVAL, InterventionTrainerSync

    trainer = InterventionTrainerSync(config({"trainer.v1.sync.parameter_sync_step": 3}))
    assert trainer.trainer_mode == trainer.replay_buffer.trainer_mode == "sync"
    assert trainer.parameter_sync_step == 3
    assert trainer.replay_buffer.poll_interval == POLL_INTERVAL < 1
    stock = compose_stock().trainer.v1
    assert InterventionTrainerSync(config()).parameter_sync_step == stock.get("sync", {}).get("parameter_sync_step", 1)


def test_a_bad_config_is_refused_before_anything_starts(config, queue):
    from verl_mintrl.trainer import InterventionTrainerSync

    with pytest.raises(ConfigError, match=r"algorithm\.use_kl_in_reward"):
        InterventionTrainerSync(config({"algorithm.use_kl_in_reward": True}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"function": "no_such_module:review"}, r"intervention\.judge\.function: cannot import no_such_module"),
        ({"prompts.validator": "no_such_file.txt"}, r"intervention\.judge\.prompts\.validator: cannot read"),
        (
            {"joint": False, "roles.corrector.function": "a.py:f"},
            r"judge\.roles\.corrector\.function: there is no file",
        ),
        ({"backend": "recorded", "recorded": "no_such_run"}, r"intervention\.judge\.recorded: there are no"),
        (
            {
                "backend": "endpoint",
                "endpoint.base_url": "http://127.0.0.1:1/v1",
                "endpoint.model": "m",
                "endpoint.api_key_env": "NO_SUCH_VARIABLE",
            },
            r"intervention\.judge\.endpoint\.api_key_env names an environment variable that is not set",
        ),
    ],
)
def test_a_judge_that_no_worker_could_build_is_refused_before_anything_starts(config, queue, changes, said):
    from verl_mintrl.trainer import InterventionTrainerSync

    changes = {f"intervention.judge.{key}": value for key, value in changes.items()}
    with pytest.raises(ConfigError, match=said):
        InterventionTrainerSync(config(changes))
    InterventionTrainerSync(config({**changes, "intervention.trigger": "never"}))


def test_a_bad_dataset_is_refused(config, queue, characters, tmp_path):
    import pandas
    from transformers import AutoTokenizer

    from verl_mintrl.trainer import InterventionTrainerSync

    row = {"prompt": [{"role": "user", "content": "say it"}], "reward_model": {"ground_truth": "x"}, "authors": "me"}
    file = tmp_path / "rows.parquet"
    pandas.DataFrame([row] * 4).to_parquet(file)
    files = {"data.train_files": str(file), "data.val_files": str(file), "data.dataloader_num_workers": 0}
    trainer = InterventionTrainerSync(config(files))
    trainer.tokenizer, trainer.processor = AutoTokenizer.from_pretrained(characters), None
    with pytest.raises(ConfigError, match=r"columns named like fields of verl: authors"):
        trainer._init_dataloader()
