"""The in-process sampler: what it hands out is what the trained model says, whoever shares the batch."""

from __future__ import annotations

import asyncio

import pytest
import torch
from lab.engine import Engine
from lab.rollout import pieces
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_mintrl.rollout.scoring import ServerScorer
from verl_mintrl.rollout.writer import ServerWriter

PLAIN = {"temperature": 1.0, "top_p": 1.0, "logprobs": True}
STOP = {"stop": ["5"], "include_stop_str_in_output": True}


@pytest.fixture(scope="module")
def parts(tiny_policy):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    return model, tokenizer


@pytest.fixture
def engine(parts):
    model, tokenizer = parts
    torch.manual_seed(0)
    return Engine(model, [tokenizer.eos_token_id], pieces(tokenizer), max_model_len=128)


def ask(engine, *calls):
    """All calls at once: (request id, prompt ids, sampling parameters)."""

    async def every():
        return await asyncio.gather(
            *(engine.generate(key, prompt_ids=ids, sampling_params=params) for key, ids, params in calls)
        )

    return asyncio.run(every())


@torch.no_grad()
def trained_log_probs(model, prompt, response):
    logits = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
    places = torch.arange(len(prompt), len(prompt) + len(response))
    return logits[places - 1, torch.tensor(response)]


def test_log_probs_are_those_of_the_trained_model(engine, parts):
    prompts = [list(range(10, 10 + n)) for n in (3, 17, 9, 1)]
    limits = (40, 5, 25, 60)
    outputs = ask(
        engine,
        *((f"r{i}", p, {**PLAIN, "max_tokens": m}) for i, (p, m) in enumerate(zip(prompts, limits, strict=True))),
    )
    for prompt, limit, output in zip(prompts, limits, outputs, strict=True):
        ended = output.token_ids[-1] in engine.end_ids
        assert len(output.token_ids) == limit or ended
        expected = trained_log_probs(parts[0], prompt, output.token_ids)
        assert torch.allclose(torch.tensor(output.log_probs), expected, atol=1e-4)


def test_a_session_that_goes_on_is_not_computed_anew_and_not_differently(engine, parts):
    prompts = {f"s{i}": list(range(5, 8 + 4 * i)) for i in range(4)}
    for _ in range(4):
        outputs = ask(engine, *((key, ids, {**PLAIN, "max_tokens": 6}) for key, ids in prompts.items()))
        for (key, ids), output in zip(list(prompts.items()), outputs, strict=True):
            expected = trained_log_probs(parts[0], ids, output.token_ids)
            assert torch.allclose(torch.tensor(output.log_probs), expected, atol=1e-4)
            prompts[key] = [*ids, *output.token_ids, 20]  # an insertion that was not sampled
    assert engine._remembered


def test_a_session_whose_end_was_cut_takes_up_the_right_place(engine, parts):
    (first,) = ask(engine, ("s", [7, 8, 9], {**PLAIN, "max_tokens": 20}))
    changed = [7, 8, 9, *first.token_ids[:5], 30, 31]
    (second,) = ask(engine, ("s", changed, {**PLAIN, "max_tokens": 10}))
    expected = trained_log_probs(parts[0], changed, second.token_ids)
    assert torch.allclose(torch.tensor(second.log_probs), expected, atol=1e-4)


def test_new_parameters_are_used_after_a_refresh(tiny_policy, parts):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy).eval()
    engine = Engine(model, [1], pieces(parts[1]), max_model_len=128)
    ask(engine, ("s", [7, 8, 9], {**PLAIN, "max_tokens": 5}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    engine.refresh()
    (output,) = ask(engine, ("s", [7, 8, 9, 10], {**PLAIN, "max_tokens": 5}))
    expected = trained_log_probs(model, [7, 8, 9, 10], output.token_ids)
    assert torch.allclose(torch.tensor(output.log_probs), expected, atol=1e-4)


def test_stop_strings_end_a_request_and_are_part_of_it(engine, parts):
    text = pieces(parts[1])
    outputs = ask(engine, *((f"s{i}", [9, 10], {**PLAIN, "max_tokens": 100, **STOP}) for i in range(8)))
    stopped = [o for o in outputs if "5" in "".join(text[i] for i in o.token_ids)]
    assert stopped
    for output in stopped:
        assert "".join(text[i] for i in output.token_ids).index("5") == len(output.token_ids) - 1


def test_greedy_and_sampled_requests_share_a_batch(engine, parts):
    greedy = {**PLAIN, "temperature": 0.0, "max_tokens": 10}
    alone = ask(engine, ("a", [4, 5], greedy))[0].token_ids
    mixed = ask(engine, ("b", [9, 9, 9], {**PLAIN, "max_tokens": 30}), ("c", [4, 5], greedy))
    assert mixed[1].token_ids == alone


def test_the_scorer_and_the_writer_of_the_package_are_served(engine, parts):
    context, ids = [5, 6, 7], [8, 9, 10, 11]

    async def both():
        writer = ServerWriter(engine, PLAIN, "w", engine.end_ids, parts[1].decode)
        return await asyncio.gather(ServerScorer(engine, 128).score(context, ids), writer.write(context, 12, ("5",)))

    scored, chunk = asyncio.run(both())
    assert torch.allclose(torch.tensor(scored), trained_log_probs(parts[0], context, ids), atol=1e-4)
    assert len(chunk.ids) == len(chunk.logprobs) <= 12


def test_concurrent_requests_are_one_batch_and_the_seed_decides(engine, parts):
    model, tokenizer = parts
    served = []
    for _ in range(2):
        torch.manual_seed(3)
        fresh = Engine(model, [tokenizer.eos_token_id], pieces(tokenizer), max_model_len=128)
        batches = []
        serve = fresh._serve
        fresh._serve = lambda batch, serve=serve, batches=batches: (batches.append(len(batch)), serve(batch))[1]

        async def session(key, fresh=fresh):
            ids = [5, 6]
            for _ in range(3):
                output = await fresh.generate(key, prompt_ids=ids, sampling_params={**PLAIN, "max_tokens": 7})
                await asyncio.sleep(0)
                ids = [*ids, *output.token_ids]
            return ids

        async def every(session=session):
            return await asyncio.gather(*(session(f"s{i}") for i in range(5)))

        served.append(asyncio.run(every()))
        assert batches == [5, 5, 5]
    assert served[0] == served[1]


@pytest.mark.parametrize(
    "params",
    [{"top_p": 0.9, "max_tokens": 3}, {"temperature": 0.5, "max_tokens": 3}, {"stop": ["\n"]}, {"max_tokens": 1000}],
)
def test_what_is_not_served_is_refused(engine, params):
    with pytest.raises(ValueError):
        ask(engine, ("s", [4, 5], params))


def test_a_failing_batch_fails_its_requests_and_nobody_hangs(engine):
    with pytest.raises(IndexError):
        ask(engine, ("s", [10_000], {**PLAIN, "max_tokens": 3}), ("t", [4], {**PLAIN, "max_tokens": 3}))
    assert ask(engine, ("u", [4], {**PLAIN, "max_tokens": 3}))[0].token_ids
