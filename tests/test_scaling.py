"""The scaling command: what it says of runs whose curve is known."""

import json

import numpy as np
import pytest

from rl_jax import command_line, scaling
from rl_jax.scaling_fit import Curve, score_at

PNG = b"\x89PNG\r\n\x1a\n"
HIGHER = Curve(start=0.1, ceiling=0.6, steepness=1.5, midpoint=1000.0)
SOONER = Curve(start=0.1, ceiling=0.5, steepness=2.5, midpoint=10**2.3)


def write_run(folder, curve, compute, *, noise=0.0, seed=0):
    """A run whose evaluations lie on a curve over its tokens."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    with open(folder / "metrics.jsonl", "w") as file:
        for step, tokens in enumerate(compute):
            if step:
                line = {"step": step, "train/num_tokens": float(tokens)}
                file.write(json.dumps(line) + "\n")
            score = float(score_at(curve, tokens)) + noise * rng.normal()
            file.write(json.dumps({"step": step, "eval/accuracy": score}) + "\n")
    return folder


def ran(capsys, *words, code=0):
    words = [*map(str, words), "--resamples=200"]
    assert command_line.exit_on_config_error(scaling.main, words) == code
    out = capsys.readouterr()
    return out.err if code else out.out


def rows(text):
    """First word of each line -> its other words."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}


@pytest.fixture
def pair(tmp_path):
    compute = np.append(0, np.geomspace(20, 1000, 10))
    return (
        write_run(tmp_path / "sooner", SOONER, compute),
        write_run(tmp_path / "higher", HIGHER, compute),
    )


def test_fit_prints_the_curve_and_its_end_at_ten_times_the_compute(
    pair, tmp_path, capsys
):
    out = ran(capsys, "fit", pair[1], f"--json={tmp_path / 'fit.json'}")
    told = rows(out)
    assert [told[name][0] for name in ("start", "ceiling", "steepness")] == [
        "0.1000",
        "0.6000",
        "1.50",
    ]
    assert told["midpoint"][:2] == ["1,000", "tokens"]
    assert told["now"][:3] == ["0.3500", "at", "1,000"]
    want = float(score_at(HIGHER, 10_000))
    assert told["predicted"][:3] == [f"{want:.4f}", "at", "10,000"]
    assert (pair[1] / "scaling.png").read_bytes().startswith(PNG)
    (recipe,) = json.loads((tmp_path / "fit.json").read_text())["recipes"]
    assert recipe["ceiling"] == pytest.approx([0.6] * 3, abs=1e-5)
    assert recipe["predicted"] == pytest.approx([want] * 3, abs=1e-5)


def test_the_first_part_of_a_run_predicts_its_end(tmp_path, capsys):
    run = write_run(tmp_path / "run", HIGHER, np.linspace(0, 30_000, 60), noise=0.01)
    out = ran(capsys, "fit", run, "--first=0.33")
    told = rows(out)
    assert told[f"{run}:"][1:3] == ["20", "points"]
    predicted, measured = float(told["end"][6][:-1]), float(told["end"][0])
    assert measured == pytest.approx(0.597, abs=0.01)
    assert predicted == pytest.approx(measured, abs=0.05)
    assert float(told["end"][-1]) == pytest.approx(predicted - measured, abs=1.1e-4)


def test_compare_warns_that_the_early_winner_has_the_lower_ceiling(pair, capsys):
    sooner, higher = pair
    out = ran(capsys, "compare", *pair, "--at=100", f"--out={sooner}.png")
    assert (
        f"warning: {sooner} is ahead at 100 tokens, 0.16 to 0.12, but its ceiling is "
        f"lower, 0.50 to 0.60: {higher} overtakes it at about "
    ) in out
    assert "overlap" not in out
    assert (sooner.parent / "sooner.png").read_bytes().startswith(PNG)
    table = rows(out)[str(higher)]
    assert table[0] == "0.6000" and table[-2] == "0.1153"


def test_compare_says_when_one_is_ahead_all_along(tmp_path, pair, capsys):
    worse = HIGHER._replace(ceiling=0.4)
    compute = np.append(0, np.geomspace(20, 1000, 10))
    lower = write_run(tmp_path / "lower", worse, compute)
    out = ran(capsys, "compare", lower, pair[1])
    assert f"{pair[1]} is ahead at 1,000 tokens and has the highest ceiling." in out
    assert "warning" not in out


def test_ceilings_that_are_alike_are_compared_by_how_soon_they_come(tmp_path, capsys):
    compute = np.linspace(0, 20_000, 30)
    slow = write_run(tmp_path / "slow", HIGHER, compute, noise=0.02)
    fast = HIGHER._replace(midpoint=500.0)
    quick = write_run(tmp_path / "quick", fast, compute, noise=0.02, seed=1)
    out = ran(capsys, "compare", slow, quick, f"--json={tmp_path / 'out.json'}")
    assert "fitted again with their mean" in out
    refits = json.loads((tmp_path / "out.json").read_text())["refits"]
    assert [refit["name"] for refit in refits] == [str(quick), str(slow)]
    assert refits[0]["ceiling"] == refits[1]["ceiling"]
    assert refits[0]["midpoint"][0] < refits[1]["midpoint"][0]


def test_an_accuracy_tends_to_one_at_most_and_says_when_that_is_open(tmp_path, capsys):
    curve = Curve(0.1, 0.9, 1.5, 4000.0)
    run = write_run(tmp_path / "run", curve, np.linspace(0, 800, 12), noise=0.01)
    told = rows(ran(capsys, "fit", run))
    assert float(told["ceiling"][-1]) <= 1.0
    assert told["warning"][:6] == "these points leave the ceiling open:".split()
    told = rows(ran(capsys, "fit", run, "--max_ceiling=0.7"))
    assert float(told["ceiling"][-1]) <= 0.7


@pytest.mark.parametrize(
    ("compute", "want"),
    [
        (0.0368, "0.0368"),
        (123.4, "123"),
        (9_999_999, "9,999,999"),
        (3.21e9, "3.21e+09"),
    ],
)
def test_compute_is_written_for_people(compute, want):
    assert scaling.amount(compute) == want


# Faults.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--first=0"], "--first=0.33"),
        (["--first=1.5"], "at most 1"),
        (["--first=0.05"], "it takes 6 or more"),
        (["--metric=eval/acuracy"], "--metric=eval/accuracy"),
        (["--chips=0"], "--chips=0"),
        (["--resamples=5"], "Expected 100 or more"),
    ],
)
def test_a_wrong_setting_ends_with_code_2(pair, capsys, words, told):
    words = ["fit", str(pair[1]), "--resamples=200", *words]
    assert command_line.exit_on_config_error(scaling.main, words) == 2
    assert told in capsys.readouterr().err


def test_a_score_that_falls_ends_with_code_2(tmp_path, capsys):
    falling = Curve(0.4, 0.1, 1.5, 1000.0)
    run = write_run(tmp_path / "run", falling, np.linspace(0, 5000, 12))
    err = ran(capsys, "fit", run, code=2)
    assert "does not rise" in err and "0.400 to 0.1" in err


def test_compare_needs_two_runs(pair, capsys):
    assert "two or more" in ran(capsys, "compare", pair[0], code=2)
    assert "above 0" in ran(capsys, "compare", *pair, "--at=-1", code=2)


def test_an_unknown_word_ends_with_code_2(capsys):
    with pytest.raises(SystemExit, match="2"):
        scaling.main(["fit", "run", "--nonsense=1"])
    assert "nonsense" in capsys.readouterr().err
