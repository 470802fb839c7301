"""Every symbol of verl, TransferQueue, vLLM and Ray that the adapters lean on.

A new version of verl that breaks one of them fails here, with what of ours depends on it, and not in a training run.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from composed import RECIPES, compose_stock
from omegaconf import OmegaConf

import verl_mintrl.config

V1 = "verl.trainer.ppo.v1"
LOOP = "verl.experimental.agent_loop.agent_loop"
TRAINER = f"{V1}.trainer_base:PPOTrainer"
WORKER = f"{LOOP}:AgentLoopWorker"
WORKER_TQ = f"{V1}.agent_loop_tq:AgentLoopWorkerTQ.__ray_metadata__.modified_class"

#: "module:attribute(parameters we pass or take)" -> what of ours depends on it
SYMBOLS = {
    # the trainer
    f"{V1}.trainer_base:register_trainer(name)": "verl_mintrl.trainer",
    f"{V1}.trainer_base:get_trainer_cls(name)": "trainer.v1.trainer_mode: intervention_sync",
    f"{V1}.trainer_sync:PPOTrainerSync(config)": "verl_mintrl.trainer",
    f"{V1}.trainer_colocate_async:PPOTrainerColocateAsync(config)": "verl_mintrl.trainer",
    "verl.workers.rollout.utils:get_max_position_embeddings(hf_config)": "verl_mintrl.rollout.worker",
    f"{TRAINER}._build_replay_buffer(self)": "verl_mintrl.trainer, which sets trainer_mode there",
    f"{TRAINER}._init_dataloader(self)": "verl_mintrl.trainer, which checks train_dataset after it",
    f"{TRAINER}._init_resource_pool_mgr(self)": "verl_mintrl.trainer, which adds the judge's pool to resource_pool_spec",
    f"{TRAINER}.get_teacher_client(self)": "verl_mintrl.trainer, verl_mintrl.rollout.teachers",
    "verl.experimental.teacher_loop:MultiTeacherModelManager(config, resource_pool)": "verl_mintrl.trainer",
    "verl.experimental.teacher_loop:MultiTeacherModelManager.get_client(self)": "verl_mintrl.trainer",
    "verl.utils.fs:copy_to_local(src)": "verl_mintrl.rollout.teachers",
    "verl.utils.tokenizer:hf_tokenizer(name_or_path)": "verl_mintrl.rollout.teachers",
    f"{TRAINER}._compute_old_log_prob(self, batch, metrics)": "verl_mintrl.trainer",
    f"{TRAINER}._compute_advantage(self, batch, metrics)": "verl_mintrl.trainer",
    f"{TRAINER}._update_actor(self, batch, metrics)": "verl_mintrl.trainer",
    f"{TRAINER}._log_rollout_data(self, batch, timing_raw, rollout_data_dir)": "verl_mintrl.trainer",
    f"{TRAINER}.fit(self, agent_loop_manager)": "verl_mintrl.trainer, which writes the manifest around it",
    f"{V1}.replay_buffer:ReplayBuffer(trainer_mode, poll_interval)": "verl_mintrl.trainer.POLL_INTERVAL",
    "verl.protocol:DataProto(batch)": "verl_mintrl.trainer",
    "verl.utils.tensordict_utils:get_tensordict(tensor_dict)": "verl_mintrl.trainer",
    "verl.utils.debug.metrics:calculate_debug_metrics(data)": "verl_mintrl.trainer",
    "verl.workers.utils.padding:response_to_nested(tensor, response_mask)": "verl_mintrl.trainer",
    "verl.trainer.ppo.padding_utils:upsample_batch_to_divisible_size(batch, batch_multiple, eos_token_id)": (
        "verl_mintrl.trainer, which undoes its clones of our columns"
    ),
    # the queue
    "transfer_queue:kv_batch_get(keys, partition_id, select_fields)": "verl_mintrl.trainer",
    "transfer_queue:kv_batch_put(keys, partition_id, fields, tags)": "verl_mintrl.trainer",
    "transfer_queue:KVBatchMeta(keys, tags, partition_id, fields)": "verl_mintrl.trainer",
    # the rollout
    f"{V1}.agent_loop_tq:AgentLoopManagerTQ(args, kwargs)": "verl_mintrl.rollout.manager",
    f"{V1}.agent_loop_tq:AgentLoopManagerTQ.create(args, kwargs)": "verl_mintrl.rollout.manager",
    f"{WORKER_TQ}(args, kwargs)": "verl_mintrl.rollout.worker",
    f"{WORKER_TQ}._run_prompt(self, prompt, sampling_params, trajectory, trace)": "verl_mintrl.rollout.worker",
    f"{WORKER_TQ}._agent_loop_postprocess(self, output, validate, kwargs)": "verl_mintrl.rollout.worker",
    f"{WORKER}(config, llm_client, teacher_client, reward_loop_worker_handles)": "verl_mintrl.rollout.worker",
    f"{WORKER}._run_agent_loop(self, sampling_params, trajectory, agent_name, trace, kwargs)": (
        "verl_mintrl.rollout.worker"
    ),
    f"{WORKER}._compute_score(self, outputs, kwargs)": "verl_mintrl.rollout.worker, which scores before publishing",
    f"{LOOP}:register(agent_name)": "verl_mintrl.rollout.agent_loop",
    f"{LOOP}:AgentLoopBase.run(self, sampling_params, kwargs)": "verl_mintrl.rollout.agent_loop",
    f"{LOOP}:AgentLoopBase.ct_build_initial_tokens(self, messages)": "verl_mintrl.rollout.agent_loop",
    f"{LOOP}:AgentLoopMetrics(generate_sequences)": "verl_mintrl.rollout.agent_loop",
    f"{LOOP}:AgentLoopOutput.as_dict(self)": "verl_mintrl.rollout.output",
    "verl.workers.rollout.llm_server:LLMServerClient.generate(self, request_id, prompt_ids, sampling_params)": (
        "verl_mintrl.rollout.writer, verl_mintrl.judges.servers"
    ),
    "verl.workers.rollout.llm_server:LLMServerClient._acquire_server(self, request_id, extra)": (
        "verl_mintrl.rollout.abort, which records the requests of the handle it returns"
    ),
    # the objective
    "verl.trainer.ppo.core_algos:register_policy_loss(name)": "verl_mintrl.objective",
    "verl.trainer.ppo.core_algos:get_policy_loss_fn(name)": "verl_mintrl.objective",
    "verl.workers.config:PolicyLossConfig(loss_mode)": "verl_mintrl.config.loss",
    "verl.workers.config:ActorConfig(global_batch_info, policy_loss, loss_scale_factor, loss_agg_mode)": (
        "verl_mintrl.objective"
    ),
    "verl.workers.utils.losses:ppo_loss(config, model_output, data)": "verl_mintrl.objective",
    "verl.utils.metric:Metric.from_dict(data, aggregation)": "verl_mintrl.learning.loss, whose metrics it averages",
    # the CPU platform
    "verl.plugin.platform:PlatformRegistry.register(platform)": "verl_mintrl.cpu.platform",
    "verl.plugin.platform:PlatformBase": "verl_mintrl.cpu.platform",
    "verl.utils.distributed:initialize_global_process_group_ray(timeout_second, backend)": "verl_mintrl.cpu.engine",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead": "verl_mintrl.cpu.engine",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithValueHead": "verl_mintrl.cpu.engine",
    "verl.workers.engine.fsdp.transformer_impl:EngineRegistry.register(model_type, backend, device)": (
        "verl_mintrl.cpu.engine"
    ),
    "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm(layer, remove_weight)": "verl_mintrl.cpu.vllm",
    # the rest
    "verl.utils.tracking:FileLogger(project_name, experiment_name)": "recipes and tests",
    "ray:remote": "verl_mintrl.rollout.manager",
}

#: class -> attributes set in its methods that we read or set
ATTRIBUTES = {
    TRAINER: (
        "config trainer_mode parameter_sync_step replay_buffer train_dataset tokenizer global_steps".split(),
        "verl_mintrl.trainer",
    ),
    f"{V1}.replay_buffer:ReplayBuffer": (["poll_interval"], "verl_mintrl.trainer.POLL_INTERVAL"),
    WORKER: (
        "config rollout_config model_config tokenizer llm_client reward_loop_worker_handles".split(),
        "verl_mintrl.rollout.worker",
    ),
    f"{V1}.agent_loop_tq:AgentLoopManagerTQ": (["agent_loop_workers_class"], "verl_mintrl.rollout.manager"),
    f"{LOOP}:AgentLoopBase": ("rollout_config server_manager tokenizer".split(), "verl_mintrl.rollout.agent_loop"),
}

#: "module:function" -> texts of its source whose meaning we rely on, and what depends on them
SOURCES = {
    TRAINER: (['self.trainer_mode == "sync"', 'self.trainer_mode != "sync"'], "the trainer_mode we set"),
    f"{TRAINER}._compute_advantage": (
        [
            '"uid"',
            '"response_mask"',
            '"rm_scores"',
            '"rollout_log_probs"',
            '"old_log_probs"',
            "batch = tq.kv_batch_put(",
        ],
        "the columns rewritten before it (uids of masked sessions) and the meta it returns",
    ),
    f"{V1}.utils:compute_advantage_for_multi_trajectories": (
        ['rsplit("_", 2)', "row_to_local_index"],
        "advantages by uid column, not by key, for masked sessions",
    ),
    f"{WORKER_TQ}._agent_loop_postprocess": (
        ["field.update(kwargs)", 'field["loss_mask"] = field["response_mask"]', '"prompt_len"'],
        "RESERVED_COLUMNS, masking by response_mask, intervention/prompts_at_limit",
    ),
    f"{WORKER_TQ}._run_prompt": (["session_id=i", "**prompt", '"__rollout_n__"'], "the group handed to sessions"),
    f"{LOOP}:AgentLoopOutput.as_dict": (["rm_scores[-1] = reward_score"], "one inert token in an empty response"),
    f"{WORKER}._compute_score": (["final_output.reward_score is None"], "rewards scored before publishing"),
    "verl.trainer.ppo.padding_utils:construct_minimal_padding_template": (["is_padding=True"], "tag of padding rows"),
    "verl.workers.utils.losses:ppo_loss": (
        [
            "old_log_prob=old_log_prob",
            "log_prob=log_prob",
            "advantages=advantages",
            "response_mask=response_mask",
            "loss_agg_mode=loss_agg_mode",
            "config=config",
            "rollout_is_weights=rollout_is_weights",
            'global_batch_info["dp_size"]',
            'global_batch_info["global_batch_size"]',
        ],
        "verl_mintrl.objective.intervention_regression",
    ),
    "verl.utils.tracking:FileLogger": (["VERL_FILE_LOGGER_PATH"], "tests/end_to_end/harness.py"),
    "verl.workers.rollout.llm_server:LLMServerClient.generate": (
        ["min_global_steps", "max_global_steps"],
        "verl_mintrl.rollout.writer",
    ),
}

#: what an AgentLoopOutput is made of here; an unknown field would be dropped silently by pydantic
OUTPUT_FIELDS = (
    "prompt_ids response_ids response_mask response_logprobs reward_score num_turns metrics extra_fields".split()
)


def broken(what: str, needed_by: str) -> str:
    return f"verl {version('verl')} (TransferQueue {version('TransferQueue')}): {what}; needed by {needed_by}."


def resolve(path: str) -> object:
    module, _, attributes = path.partition(":")
    value = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        value = getattr(value, attribute)
    return value


def parameters(symbol: object) -> set[str]:
    found = set(inspect.signature(symbol).parameters)
    return found | set(getattr(symbol, "model_fields", ()))


def test_symbols():
    faults = []
    for entry, needed_by in SYMBOLS.items():
        path, _, arguments = entry.partition("(")
        try:
            symbol = resolve(path)
            expected = {name for name in arguments.rstrip(")").split(", ") if name}
            if missing := expected - (parameters(symbol) if expected else set()):
                faults.append(broken(f"{path} has no parameter {', '.join(sorted(missing))}", needed_by))
        except (ImportError, AttributeError) as error:
            faults.append(broken(f"{path}: {error}", needed_by))
    assert not faults, "\n".join(faults)


def test_attributes():
    faults = []
    for path, (names, needed_by) in ATTRIBUTES.items():
        source = inspect.getsource(resolve(path))
        faults += [
            broken(f"{path} sets no self.{name}", needed_by)
            for name in names
            if not re.search(rf"self\.{name}(: [^=]+)? = ", source)
        ]
    assert not faults, "\n".join(faults)


def test_sources():
    faults = []
    for path, (texts, needed_by) in SOURCES.items():
        source = inspect.getsource(resolve(path))
        faults += [broken(f"{path} has no {text!r}", needed_by) for text in texts if text not in source]
    assert not faults, "\n".join(faults)


def test_rows():
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    missing = set(OUTPUT_FIELDS) - set(AgentLoopOutput.model_fields)
    assert not missing, broken(f"AgentLoopOutput has no {missing}", "verl_mintrl.rollout.output")
    output = AgentLoopOutput(
        prompt_ids=[1],
        response_ids=[2, 3],
        response_mask=[1, 0],
        response_logprobs=[-1.0, -2.0],
        reward_score=0.5,
        num_turns=2,
        metrics=AgentLoopMetrics(),
    )
    output.extra_fields["later"] = 1
    row = output.as_dict()
    assert {"prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores"} <= row.keys(), row.keys()
    assert row["rm_scores"].tolist() == [0.0, 0.5], broken("the reward is not on the last token", "rollout.output")
    assert row["extra_fields"] == {"later": 1}, broken("late extra_fields are lost", "verl_mintrl.rollout.output")


def test_policy_loss_config_is_closed():
    """Why InterventionLossConfig exists, and that it does not collide with fields of verl."""
    from verl.workers.config import PolicyLossConfig

    theirs = set(PolicyLossConfig.__dataclass_fields__)
    ours = set(vars(verl_mintrl.config.InterventionLossConfig)["__annotations__"]) - {"loss_mode"}
    assert not ours & theirs, broken(f"PolicyLossConfig now has {ours & theirs}", "verl_mintrl.config.loss")
    with pytest.raises(TypeError):
        PolicyLossConfig(beta=1.0)


def test_overrides():
    """The methods overridden exist in the parent, so that none of ours is dead code."""
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from verl_mintrl.rollout.worker import InterventionAgentLoopWorker
    from verl_mintrl.trainer import InterventionTrainer

    worker = resolve(WORKER_TQ)
    for ours, theirs, names in (
        (
            InterventionTrainer,
            PPOTrainerSync,
            "_build_replay_buffer _init_dataloader fit _compute_old_log_prob _compute_advantage _update_actor "
            "_log_rollout_data",
        ),
        (InterventionAgentLoopWorker, worker, "_run_prompt _run_agent_loop _agent_loop_postprocess"),
    ):
        for method in names.split():
            assert method in vars(ours)
            expected = inspect.signature(getattr(theirs, method))
            found = inspect.signature(vars(ours)[method])
            taken = [name for name in expected.parameters if not name.startswith("_ray")]  # Ray's tracing adds one
            assert list(found.parameters)[: len(taken)] == taken, broken(
                f"{theirs.__name__}.{method}{expected}", f"{ours.__name__}.{method}{found}"
            )


# --- configuration

#: keys of ours that verl's YAML does not have, and who reads them
ADDED = {
    "intervention": "the plugin",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "verl.trainer.main_ppo",
    "actor_rollout_ref.actor.policy_loss.beta": "InterventionLossConfig",
    "actor_rollout_ref.actor.policy_loss.horizon": "InterventionLossConfig",
    "actor_rollout_ref.actor.policy_loss.length_norm": "InterventionLossConfig",
    "actor_rollout_ref.actor.policy_loss.loss_scale": "InterventionLossConfig",
    "actor_rollout_ref.model.override_config": "transformers",
    "actor_rollout_ref.rollout.enable_sleep_mode": "RolloutConfig",
    "distillation.teacher_models.teacher_model.inference.enable_sleep_mode": "RolloutConfig",
    "actor_rollout_ref.rollout.engine_kwargs.vllm": "vLLM",
    "ray_kwargs.ray_init": "ray.init",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision": "FSDPEngineConfig",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision": "FSDPEngineConfig",
}

#: keys read by our code without standing in a YAML of ours
READ = """
trainer.default_local_dir trainer.rollout_data_dir trainer.resume_mode trainer.use_v1
critic.enable algorithm.use_kl_in_reward algorithm.adv_estimator algorithm.rollout_correction.rollout_is
algorithm.rollout_correction.rollout_rs algorithm.rollout_correction.bypass_mode distillation.enabled
distillation.distillation_loss.use_policy_gradient reward.reward_model.enable
reward.reward_model.enable_resource_pool actor_rollout_ref.actor.policy_loss.loss_mode
actor_rollout_ref.actor.use_kl_loss actor_rollout_ref.actor.entropy_coeff actor_rollout_ref.actor.grad_clip
actor_rollout_ref.actor.data_loader_seed actor_rollout_ref.actor.loss_scale_factor
actor_rollout_ref.rollout.agent.default_agent_loop actor_rollout_ref.rollout.agent.agent_loop_config_path
actor_rollout_ref.rollout.enable_rollout_routing_replay actor_rollout_ref.rollout.full_determinism
actor_rollout_ref.rollout.calculate_log_probs actor_rollout_ref.rollout.n actor_rollout_ref.rollout.val_kwargs.n
actor_rollout_ref.rollout.prompt_length actor_rollout_ref.rollout.response_length
actor_rollout_ref.rollout.max_model_len data.apply_chat_template_kwargs data.image_key data.video_key
transfer_queue.backend.SimpleStorage.num_data_storage_units
""".split()


def leaves(node: dict, prefix: str = "") -> list[str]:
    found = []
    for key, value in node.items():
        found += leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else [f"{prefix}{key}"]
    return found


def written_keys() -> dict[str, str]:
    """Config key -> YAML file of ours that sets it."""
    folder = Path(verl_mintrl.config.__file__).parent
    keys = {}
    for file in [*folder.glob("*/*.yaml"), *RECIPES.glob("*.yaml")]:
        content = yaml.safe_load(file.read_text())
        content.pop("hydra", None)
        content.pop("defaults", None)
        keys |= dict.fromkeys(leaves(content), file.name)
    return keys


def test_config_keys():
    known = set(leaves(OmegaConf.to_container(compose_stock(), resolve=False)))
    groups = {key.rsplit(".", depth)[0] for key in known for depth in range(1, key.count(".") + 1)}
    faults = [
        broken(f"verl's own config has no {key}", file)
        for key, file in written_keys().items()
        if key not in known and not any(key == added or key.startswith(f"{added}.") for added in ADDED)
    ]
    faults += [
        broken(f"verl's own config has no {key}", "verl_mintrl.config.validate")
        for key in READ
        if key not in known | groups
    ]
    assert not faults, "\n".join(faults)


def test_added_keys_are_not_in_verl_yet():
    stock = compose_stock()
    known = leaves(OmegaConf.to_container(stock, resolve=False))
    stale = [key for key in ADDED if key in known and OmegaConf.select(stock, key) not in ({}, None)]
    assert not stale, f"verl {version('verl')} has {stale} itself: take it off the list"


# --- registration through the entry points, in processes of their own

PROBE = """
import json, sys, warnings
warnings.simplefilter("ignore")
import verl
light = sorted(name for name in sys.modules if name.split(".")[0] == "verl_mintrl")
heavy = sorted(name for name in ("vllm", "verl.trainer.ppo.v1", "verl.experimental.agent_loop") if name in sys.modules)
import verl.trainer.ppo.core_algos as core_algos
import verl.experimental.agent_loop.agent_loop as agent_loop
import verl.trainer.ppo.v1.trainer_base as trainer_base
import verl_mintrl.plugin
print(json.dumps({
    "light": light,
    "heavy": heavy,
    "loss": core_algos.POLICY_LOSS_REGISTRY["intervention_regression"].__module__,
    "loop": agent_loop._agent_loop_registry["intervention_agent"]["_target_"],
    "trainer": trainer_base.TRAINER_REGISTRY["intervention_sync"].__module__,
    "stock": sorted(trainer_base.TRAINER_REGISTRY),
    "failures": {name: str(error) for name, error in verl_mintrl.plugin.FAILURES.items()},
}))
"""

FAILING = """
import json, logging, sys
logging.basicConfig(level=logging.WARNING)
sys.modules["verl_mintrl.objective"] = None
import verl.trainer.ppo.core_algos
import verl_mintrl.plugin
print(json.dumps({name: type(error).__name__ for name, error in verl_mintrl.plugin.FAILURES.items()}))
"""


#: modules of ours that import what registers others of ours, imported before verl has registered anything
FIRST = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
import verl.experimental.agent_loop.agent_loop as agent_loop
import verl_mintrl.plugin
print(json.dumps([
    "intervention_agent" in agent_loop._agent_loop_registry,
    {name: str(error) for name, error in verl_mintrl.plugin.FAILURES.items()},
]))
"""


@pytest.mark.parametrize("module", ["rollout.output", "rollout.worker"])
def test_our_modules_may_be_imported_before_those_of_verl(module):
    done = subprocess.run([sys.executable, "-c", FIRST, f"verl_mintrl.{module}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [True, {}]


@pytest.fixture(scope="module")
def processes() -> dict[str, subprocess.CompletedProcess]:
    """Both probes at once; each pays for the imports of verl."""
    variables = {key: value for key, value in os.environ.items() if key != "VERL_PLATFORM"}
    running = {
        code: subprocess.Popen(
            [sys.executable, "-c", code], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for code in (PROBE, FAILING)
    }
    finished = {}
    for code, process in running.items():
        output, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors[-3000:]
        finished[code] = subprocess.CompletedProcess(code, 0, output, errors)
    return finished


@pytest.fixture(scope="module")
def registered(processes) -> dict:
    return json.loads(processes[PROBE].stdout.splitlines()[-1])


def test_import_verl_stays_light(registered):
    assert registered["light"] == ["verl_mintrl", "verl_mintrl.plugin"]
    assert registered["heavy"] == []


def test_everything_is_registered(registered):
    assert registered["loss"] == "verl_mintrl.objective"
    assert registered["loop"] == "verl_mintrl.rollout.agent_loop.InterventionAgentLoop"
    assert registered["trainer"] == "verl_mintrl.trainer"
    assert {"sync", "colocate_async", "separate_async"} <= set(registered["stock"]), "stock trainers stay"
    assert registered["failures"] == {}


def test_a_failing_registration_is_warned_about_and_kept(processes):
    finished = processes[FAILING]
    assert json.loads(finished.stdout.splitlines()[-1]) == {"verl_mintrl.objective": "ModuleNotFoundError"}
    assert "verl_mintrl could not register verl_mintrl.objective: ModuleNotFoundError" in finished.stderr
    assert "Traceback" in finished.stderr
