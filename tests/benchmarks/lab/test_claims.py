"""Verdicts follow from their rule, and the report from the files of the runner."""

from __future__ import annotations

import fcntl
import json
import math

import pytest
from lab.arms import ARMS
from lab.claims import CLAIMS, SUCCESS, above, agreement
from lab.pretrain import POLICY, cached
from lab.report import KEPT_VERL, table, write_report
from lab.results import KEPT, Difference, Results, Run
from lab.run import as_json, main
from lab.settings import ROOT, settings
from lab.suites import FULL, SEEDS, suite


def make_run(arm, seed, successes, **more):
    rows = [
        {"update": u, "val/success": s, "cpu/sample": 1.0, "cpu/learn": 1.0, **more} for u, s in enumerate(successes)
    ]
    return Run({"arm": arm, "seed": seed, "updates": len(successes) - 1, "split": "hard"}, rows)


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (Difference(0.1, 0.02, 3), "holds"),
        (Difference(0.1, 0.02, 2), "not decidable here"),
        (Difference(0.1, math.nan, 1), "not decidable here"),
        (Difference(0.03, 0.02, 3), "not decidable here"),
        (Difference(-0.1, 0.02, 3), "the reverse holds"),
        (Difference(0.0, 0.005, 3), "does not hold"),
        (Difference(0.056, 0.027, 3), "not decidable here"),
        (Difference(0.056, 0.022, 4), "holds"),
        (Difference(0.01, 0.0, 3, bounded=True), "not decidable here"),  # both at the ceiling
        (Difference(0.0, 0.005, 3, margin=0.0), "not decidable here"),  # no rate: every difference is of interest
        (Difference(math.nan, math.nan, 0), "not run"),
    ],
)
def test_verdicts(difference, verdict):
    assert difference.verdict() == verdict


def test_differences_are_paired_by_seed():
    results = Results(
        [make_run("a", s, [0, 0.5 + 0.1 * s]) for s in (0, 1, 2)]
        + [make_run("b", s, [0, 0.4 + 0.1 * s]) for s in (1, 2, 3)]
    )
    difference = results.difference("a", "b", SUCCESS)
    assert difference.seeds == 2
    assert difference.mean == pytest.approx(0.1)
    assert above(results, "a", "nobody", SUCCESS, "x").verdict == "not run"


@pytest.mark.parametrize(
    ("ours", "theirs", "error", "bounded"),
    [
        (
            (0.55, 0.60, 0.50),
            (0.50, 0.55, 0.45),
            math.sqrt(6 * 0.2475 / 192) / 3,
            False,
        ),  # the same in every seed: chance remains
        ((0.30, 0.60, 0.90), (0.50, 0.50, 0.50), 0.1732, False),  # seeds differ by more than chance
        ((1.0, 1.0, 1.0), (0.98, 0.99, 0.99), 0.0, True),
        ((0.0, 0.01, 0.02), (0.0, 0.0, 0.01), 0.0, True),
        ((0.0, 0.0, 0.0), (0.5, 0.5, 0.5), math.sqrt(3 * 0.25 / 192) / 3, False),
    ],
)
def test_the_error_of_a_rate_is_at_least_that_of_its_attempts(ours, theirs, error, bounded):
    runs = [make_run(arm, s, [0, v]) for arm, values in (("a", ours), ("b", theirs)) for s, v in enumerate(values)]
    difference = Results(runs).difference("a", "b", SUCCESS)
    assert difference.error == pytest.approx(error, abs=0.01) and difference.bounded == bounded
    plain = Results(runs).difference("a", "b", lambda run: run.last())
    assert plain.margin == 0 and not plain.bounded and plain.error <= difference.error + 1e-12


def test_a_value_that_was_not_measured_in_the_end_is_none():
    run = make_run("a", 0, [0.1, 0.2, 0.3])
    run.rows[0]["hard/success"] = 0.01
    assert math.isnan(run.last("hard/success")) and math.isnan(run.until(1).last("hard/success"))
    assert run.until(0).last("hard/success") == 0.01 and run.until(1).last() == 0.2


def test_last_best_and_equal_time():
    run = make_run("a", 0, [0.1, 0.7, 0.3])
    assert (run.first(), run.best(), run.last()) == (0.1, 0.7, 0.3)
    assert run.seconds() == 4.0 and run.at_seconds(3) == 0.5 and run.at_seconds(0) == 0.1
    assert run.mean("val/success", 0.5) == 0.3
    untimed = Run(run.experiment, [{"update": row["update"], "val/success": row["val/success"]} for row in run.rows])
    assert math.isnan(untimed.at_seconds(math.inf)), "the first look is no answer"


def test_every_claim_is_judged_with_nothing_and_with_everything(tmp_path):
    for claim in CLAIMS:
        assert {finding.verdict for finding in claim.findings(Results([]))} == {"not run"}
    folder = tmp_path / "runs"
    folder.mkdir()
    for number, arm in enumerate(ARMS):
        for seed in SEEDS:
            run = make_run(arm, seed, [0.1, 0.2 + 0.005 * number + 0.001 * seed])
            lines = [{"experiment": run.experiment, "policy": "p"}, *run.rows]
            (folder / f"{arm}-{seed}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    runs = Results.load(folder)
    write_report(runs, tmp_path / "out", "full", runs)
    text = (tmp_path / "out" / "claims.md").read_text()
    assert all(f"## {claim.number}. {claim.title}" in text for claim in CLAIMS)
    assert [claim.number for claim in CLAIMS] == list(range(1, 13))
    assert len(list((tmp_path / "out").glob("claim-*.png"))) == 12
    assert len((tmp_path / "out" / "runs.jsonl").read_text().splitlines()) == len(ARMS) * len(SEEDS)


def test_kept_runs_say_what_the_runs_said(tmp_path):
    """The table made from ``runs.jsonl`` is the one made from the runs."""
    more = {"intervention/judge_calls": 7.0, "hard/success": 0.25, "somewhere/else": 1.0}
    runs = [make_run("const_noisy", seed, [0.1, 0.5, 0.123456789], **more) for seed in SEEDS]
    Results([Run(r.experiment, r.rows, "p", "c0ffee") for r in runs]).keep(tmp_path / KEPT)
    kept = Results.load(tmp_path / "nothing here", tmp_path / KEPT)
    for run, again in zip(runs, kept.of("const_noisy"), strict=True):
        assert again.experiment == run.experiment and (again.policy, again.commit) == ("p", "c0ffee")
        assert again.seconds() == run.seconds() == 4.0
        assert again.gathered("intervention/judge_calls") == run.gathered("intervention/judge_calls")
        assert again.last() == pytest.approx(run.last(), rel=1e-3) and again.last("hard/success") == 0.25
        assert not again.curve("somewhere/else")


def test_a_report_of_some_runs_deletes_no_other(tmp_path):
    old, new = make_run("rti_noisy", 0, [0.1, 0.5]), make_run("rti_noisy", 1, [0.1, 0.6])
    Results([old, make_run("rti_noisy", 1, [0.1, 0.2])]).keep(tmp_path / KEPT)
    for some in ([new], []):
        write_report(Results(some), tmp_path, "quick", Results([]))
    kept = Results.load(tmp_path / "nothing here", tmp_path / KEPT)
    assert [run.last() for run in kept.of("rti_noisy")] == [0.5, 0.6]


def test_a_run_of_another_length_stands_beside_the_kept_one_and_not_in_its_place(tmp_path):
    long, short = make_run("grpo_hard", 0, [0.1, 0.2, 0.5]), make_run("grpo_hard", 0, [0.1, 0.3])
    Results([long]).keep(tmp_path / KEPT)
    write_report(Results([short]), tmp_path, "quick", Results([]))
    (tmp_path / "runs").mkdir()
    lines = [{"experiment": short.experiment, "policy": ""}, *short.rows]
    (tmp_path / "runs" / "grpo_hard-0.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = Results.load(tmp_path / "runs", tmp_path / KEPT)
    assert len(found) == 2
    assert [run.last() for run in found.only([long.experiment], "").of("grpo_hard")] == [0.5]
    assert [run.last() for run in found.only([short.experiment], "").of("grpo_hard")] == [0.3]
    assert [run.last() for run in found.only([short.experiment], "", any_length=True).of("grpo_hard")] == [0.5]


def test_the_table_in_the_repository_is_that_of_the_kept_runs():
    folder, policy = ROOT / "benchmarks" / "lab" / "results", cached("policy", POLICY).name
    wanted = [as_json(e) for e in suite("full")]
    kept = Results.load(folder / "no runs", folder / KEPT)
    verl = Results.load(folder / "no runs", folder / KEPT_VERL)
    counting = kept.only(wanted, policy), verl.only(wanted, policy, any_length=True)
    assert [len(some) for some in counting] == [len(kept), len(verl)], "kept runs of arms that are no more"
    assert table(counting[0], "full", counting[1]) == (folder / "claims.md").read_text()


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"experiment": 1}',
        '{"experiment": {"arm": "a"}}\n{"upda',
        '{"experiment": {"arm": "a", "seed": 1, "updates": 1}}\n{"val/success": 0.5}',
        "\udcff",
    ],
)
def test_a_damaged_file_of_a_run_is_named_and_its_run_made_again(tmp_path, capsys, damage):
    good = make_run("a", 0, [0.1, 0.5])
    lines = [{"experiment": good.experiment, "policy": "p"}, *good.rows]
    (tmp_path / "a-0.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "a-1.jsonl").write_bytes(damage.encode(errors="surrogateescape"))
    assert len(Results.load(tmp_path)) == 1
    assert "a-1.jsonl is no file of a run" in capsys.readouterr().out


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_an_unfinished_file_of_a_run_is_named_and_its_run_made_again(tmp_path, capsys, rows):
    run = make_run("a", 0, [0.1, 0.5, 0.6])
    lines = [{"experiment": run.experiment, "policy": "p"}, *run.rows[:rows]]
    (tmp_path / "a-0.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert len(Results.load(tmp_path)) == 0
    assert "a-0.jsonl ends before its last update" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["{", "[]", "3", '{"experiment": {}, "columns": [], "policy": ""}'])
def test_a_damaged_file_of_kept_runs_stops_and_is_left_alone(tmp_path, damage):
    path = tmp_path / KEPT
    Results([make_run("a", 0, [0.1, 0.5])]).keep(path)
    text = path.read_text() + damage + "\n"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 2"):
        Results.load(tmp_path / "nothing here", path)
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 2"):
        Results([]).keep(path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arms", "nosuch"], "not in the suite quick"),
        (["--arms", "const_noisy"], "not in the suite quick"),
        (["--suite", "full", "--seeds", "7"], "not in the suite full"),
        (["--jobs", "0"], "at least 1"),
        (["--jobs", "-2"], "at least 1"),
        (["--out", __file__], "no folder"),
        (["--suite", "full", "--results", __file__], "no folder"),
        (["--results", "nowhere"], "for the suite full"),
        (["--arms"], "expected at least one argument"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(monkeypatch, capsys, arguments, said):
    monkeypatch.setattr("sys.argv", ["run.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "changed", "said"),
    [
        (None, {}, "nothing to report"),
        ("an old policy", {}, "they began with an old policy"),
        (
            cached("policy", POLICY).name,
            {"n": 99},
            "nothing to report",
        ),  # another configuration: its run can be made again
    ],
)
def test_a_report_of_nothing_is_refused(monkeypatch, tmp_path, policy, changed, said):
    """Also where no kept run counts: the table would be emptied."""
    experiments = [as_json(e) for e in suite("full")[:2]]
    rows = [{"update": u, "val/success": 0.1} for u in range(41)]
    if policy is not None:
        Results([Run({**e, **changed}, rows, policy) for e in experiments]).keep(tmp_path / KEPT)
    (tmp_path / "claims.md").write_text("a table")
    arguments = ["--suite", "full", "--report-only", "--results", str(tmp_path), "--out", str(tmp_path / "o")]
    monkeypatch.setattr("sys.argv", ["run.py", *arguments])
    with pytest.raises(SystemExit, match=said):
        main()
    assert (tmp_path / "claims.md").read_text() == "a table"


def test_two_at_once_in_one_folder_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["run.py", "--out", str(tmp_path)])
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SystemExit, match="another run of the laboratory is at work"):
            main()


def test_runs_that_fail_are_told_and_end_in_an_error(monkeypatch, capsys, tmp_path):
    (tmp_path / "policy").mkdir()  # nothing in it that could be loaded
    monkeypatch.setattr("lab.pretrain.policy_path", lambda: tmp_path / "policy")
    monkeypatch.setattr("sys.argv", ["run.py", "--arms", "grpo_hard", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=r"1 runs failed.*grpo_hard-0"):
        main()
    assert "grpo_hard-0 failed: " in capsys.readouterr().out


def test_a_run_of_another_configuration_or_policy_does_not_count(tmp_path):
    experiments = [as_json(e) for e in suite("quick")]
    runs = [Run(e, [{"update": e["updates"], "val/success": 0.1}], "p") for e in experiments]
    results = Results(runs)
    assert len(results.only(experiments, "p")) == len(runs) and results.has(experiments[0])
    assert len(results.only(experiments, "other")) == 0
    changed = [{**e, "n": 99} for e in experiments]
    assert len(results.only(changed, "p", any_length=True)) == 0
    assert len(results.only(changed, "p")) == 0 and not results.has(changed[0])


def test_short_claims_are_read_early():
    long = make_run("a", 0, [u / 100 for u in range(41)])
    early = Results([long]).until(20).of("a")[0]
    assert early.last() == 0.2 and early.experiment["updates"] == 20
    assert early.mean("val/success", 0.5) == pytest.approx(sum(range(11, 21)) / 1000)


def test_tiers_are_compared_at_the_last_common_look():
    ours = Results([make_run("grpo", s, [0.1, 0.4 + 0.1 * s, 0.9]) for s in (0, 1, 2)])
    near, far = Results([make_run("grpo", 0, [0.1, 0.6])]), Results([make_run("grpo", 0, [0.1, 0.9])])
    assert [f.verdict for f in agreement(ours, near)] == ["consistent, 1 seed"]
    assert [f.verdict for f in agreement(ours, far)] == ["not consistent, 1 seed"]
    assert [f.verdict for f in agreement(ours, ours)] == ["holds"]
    assert [f.verdict for f in agreement(Results([]), near)] == ["not run"]
    assert [f.verdict for f in agreement(ours, Results([make_run("grpo", 0, [0.1])]))] == ["not run"], (
        "nothing learned yet"
    )


def test_arms_of_suites_and_claims_exist():
    assert {e.arm for e in suite("quick")} | {arm for _, arms in FULL for arm in arms} <= set(ARMS)
    assert {arm for claim in CLAIMS for arm in claim.arms} <= set(ARMS)
    names = [e.name for e in suite("full")]
    assert len(names) == len(set(names)), "an arm is listed twice"


@pytest.mark.parametrize("name", sorted(ARMS))
def test_every_arm_is_a_valid_configuration(name):
    arm = ARMS[name]
    settings(arm.preset, arm.configuration(), prompts=4, n=8, mini_batches=4)
