import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards import RewardPool, Verdict, routing
from rl_jax.rewards.ledger import RewardsFailedError

FUNCTION = """
def length(completions, scale, **kwargs):
    return [s * len(c) for s, c in zip(scale, completions, strict=True)]
"""


def sample(completion, answer, **job):
    return {
        "prompt": "",
        "completion": completion,
        "answer": answer,
        "row": {"scale": 0.5},
        "num_tokens": 1,
        "truncated": False,
        "data_source": "",
        **job,
    }


def scores_of(pool, samples):
    for ticket, job in enumerate(samples):
        pool.submit(ticket, job)
    scores = {}
    while pool.pending:
        scores.update(pool.wait(60.0))
    return [scores[ticket] for ticket in range(len(samples))]


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "length.py"
    path.write_text(FUNCTION)
    functions = ["maths", "format", f"{path}:length"]
    with RewardPool(
        functions, [1.0, 0.25, 0.0], num_workers=2, timeout_secs=20.0
    ) as pool:
        yield pool


def test_several_rewards_become_one_number(pool):
    assert pool.names == ("maths", "format", "length")
    right, wrong, cut = scores_of(
        pool,
        [
            sample(r"\boxed{4}", "4"),
            sample(r"\boxed{5}", "4"),
            sample(r"\boxed{4}", "4", truncated=True),
        ],
    )
    assert (right.value, right.verdict, right.answer) == (1.25, Verdict.CORRECT, "4")
    assert right.parts == {"maths": 1.0, "format": 1.0, "length": 4.5}
    assert (wrong.value, wrong.verdict) == (0.25, Verdict.WRONG)
    assert cut.value == 1.0


def test_polling_never_blocks_and_hands_each_score_out_once(pool):
    assert pool.poll() == []
    pool.submit(10, sample(r"\boxed{4}", "4"))
    got = []
    while pool.pending:
        got += pool.poll()
    assert [ticket for ticket, _ in got] == [10]
    assert pool.poll() == [] and pool.wait(0.0) == []


def test_a_pending_ticket_is_refused_and_a_finished_one_may_be_used_again(pool):
    pool.submit(3, sample("", ""))
    with pytest.raises(ValueError, match="3"):
        pool.submit(3, sample("", ""))
    while pool.pending:
        pool.wait(60.0)
    pool.submit(3, sample("", ""))
    while pool.pending:
        pool.wait(60.0)


def test_text_of_any_kind_reaches_the_worker(pool):
    text = "line\nbreaks, \0, \udcff, 四, " + "x" * 300_000 + r"\boxed{4}"
    (score,) = scores_of(pool, [sample(text, "4")])
    assert score.value == 1.25 and score.parts["length"] == len(text) / 2


def test_columns_that_are_no_json_are_passed_as_lists_or_text(pool):
    numpy = pytest.importorskip("numpy")
    row = {"scale": numpy.float32(0.5), "x": numpy.arange(3), "path": object()}
    (score,) = scores_of(pool, [sample("abcd", "4", row=row)])
    assert score.parts["length"] == 2.0


def test_the_number_of_workers_changes_no_score(pool):
    samples = [
        sample(rf"\boxed{{{answer}}}", gold)
        for gold in ("4", r"\frac{1}{3}", "x^2", r"\{1,2\}", "B", "")
        for answer in ("4", "0.3333333", r"x\cdot x", "2, 1", r"\text{(B)}", "9^{9^9}")
    ]
    options = {"functions": ["maths", "format"], "weights": [1.0, 0.25]}
    with RewardPool(**options, num_workers=1, timeout_secs=20.0) as single:
        alone = scores_of(single, samples)
    together = scores_of(pool, samples)
    assert [(s.value, s.verdict) for s in alone] == [
        (s.value, s.verdict) for s in together
    ]
    assert {s.value for s in alone} >= {0.25, 1.25}


def test_statistics_count_every_sample(pool):
    before = pool.stats()
    scores_of(pool, [sample(r"\boxed{4}", "4"), sample("", "4")])
    after = pool.stats()
    assert after["submitted"] - before["submitted"] == 2
    assert after["finished"] == after["submitted"]
    assert after["verdict/correct"] - before["verdict/correct"] == 1
    assert after["verdict/unparsable_reply"] > before["verdict/unparsable_reply"]
    assert after["grade_secs"] > before["grade_secs"]
    assert after["queue_secs"] > before["queue_secs"]


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (["mathz"], "did you mean 'maths'"),
        (["no_such_package:fn"], "no_such_package"),
        (["rl_jax.rewards.format:format_rewrad"], "format_reward"),
    ],
)
def test_a_reward_that_does_not_exist_stops_the_start(functions, message):
    with pytest.raises(ConfigError, match=message):
        RewardPool(functions, [1.0], num_workers=1, timeout_secs=5.0)


@pytest.mark.parametrize(("workers", "secs"), [(0, 5.0), (1, 0.0)])
def test_no_worker_or_no_time_is_refused(workers, secs):
    with pytest.raises(ConfigError, match="1 or more"):
        RewardPool(["format"], [1.0], num_workers=workers, timeout_secs=secs)


def test_a_closed_pool_takes_no_job_and_may_be_closed_again():
    pool = RewardPool(["format"], [1.0], num_workers=1, timeout_secs=5.0)
    pool.submit(0, sample("", ""))
    pool.close()
    pool.close()
    assert pool.pids == []
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(1, sample("", ""))


def test_routes_choose_functions_and_weights_by_data_source():
    routes = routing.parse(["a=maths", "b*=number@2+format@0.5"])
    with RewardPool(routes=routes, num_workers=1, timeout_secs=20.0) as pool:
        assert pool.names == ("maths", "number", "format")
        maths, number = scores_of(
            pool,
            [
                sample(r"\boxed{\frac{1}{2}}", "0.5", data_source="a"),
                sample("so 4", "4", data_source="bench"),
            ],
        )
        with pytest.raises(ConfigError, match="data source 'c'"):
            pool.submit(0, sample("", "", data_source="c"))
    assert (maths.value, maths.parts) == (1.0, {"maths": 1.0})
    assert (number.value, number.parts) == (2.0, {"number": 1.0, "format": 0.0})


def test_any_of_several_answers_is_right_and_useless_ones_are_passed_over(pool):
    answers = ["", r"\frac{1}{", r"x=\frac{1}{2}", "7"]
    samples = [
        sample(rf"\boxed{{{answer}}}", "", answers=answers)
        for answer in ("0.5", "7", "8")
    ]
    samples.append(sample(r"\boxed{1}", "", answers=["", r"\frac{1}{"]))
    scores = scores_of(pool, samples)
    assert [score.parts["maths"] for score in scores] == [1.0, 1.0, 0.0, None]
    assert scores[3].verdict == Verdict.UNPARSABLE_GOLD


def test_references_that_cannot_be_used_are_found_before_the_first_sample(pool):
    jobs = [{"answer": a} for a in ("7", "", r"\sqrt{2", "Tuesday")]
    faults = pool.check_golds(jobs)
    assert [i for i, _ in faults] == [1, 2]
    assert "maths: " in faults[0][1] and "braces" in faults[1][1]
    assert pool.pending == 0


def test_token_ids_reach_the_functions_that_name_them(tmp_path):
    path = tmp_path / "ids.py"
    path.write_text(
        "def ids(completion_ids): return float(sum(completion_ids))\n"
        "def none(**kwargs): return float('completion_ids' in kwargs)\n"
    )
    job = sample("x", "", completion_ids=[1, 2, 3], prompt_ids=[4])
    for name, value in (("ids", 6.0), ("none", 0.0)):
        functions = [f"{path}:{name}"]
        with RewardPool(functions, [1.0], num_workers=1, timeout_secs=20.0) as pool:
            assert scores_of(pool, [job])[0].value == value


def test_too_many_failures_of_our_own_stop_the_run(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("def fn(completion): raise ValueError('no such level')")
    with RewardPool(
        [f"{path}:fn"],
        [1.0],
        num_workers=1,
        timeout_secs=20.0,
        max_infrastructure_share=0.2,
    ) as pool:
        with pytest.raises(RewardsFailedError, match="0.2 is allowed(.|\n)*level"):
            scores_of(pool, [sample("", "")] * 40)


# Functions that are idle, and hidden ones.

HIDDEN = """
import time

def vowels(completion, **kwargs):
    return sum(c in "aeiou" for c in completion)

def slow(completion, **kwargs):
    if "wait" in completion:
        time.sleep(60)
    if "raise" in completion:
        raise ValueError("a bug")
    return {"value": 0.25, "parts": {"half": 0.5}}
"""


def test_idle_functions_are_measured_and_count_no_more(pool):
    right = sample(r"\boxed{4}", "4")
    assert pool.weight("") == 1.25
    pool.idle = frozenset({"format"})
    try:
        (one,) = scores_of(pool, [right])
        assert pool.weight("") == 1.0
    finally:
        pool.idle = ()
    assert (one.value, one.parts["format"]) == (1.0, 1.0)
    assert scores_of(pool, [right])[0].value == 1.25


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    path = tmp_path_factory.mktemp("hidden") / "hidden.py"
    path.write_text(HIDDEN)
    with RewardPool(
        ["number"],
        [2.0],
        hidden=[f"{path}:vowels", f"{path}:slow"],
        num_workers=2,
        timeout_secs=1.0,
    ) as pool:
        yield pool


def test_hidden_functions_add_parts_and_nothing_else(watched):
    samples = [sample(f"aeio {i} so {i % 3}", "1", row={}) for i in range(40)]
    with RewardPool(["number"], [2.0], num_workers=1, timeout_secs=5.0) as alone:
        want = scores_of(alone, samples)
    for one, other in zip(scores_of(watched, samples), want, strict=True):
        hidden = {k: v for k, v in one.parts.items() if k.startswith("hidden/")}
        assert hidden == {
            "hidden/vowels": 5.0,
            "hidden/slow": 0.25,
            "hidden/slow/half": 0.5,
        }
        rest = {k: v for k, v in one.parts.items() if k not in hidden}
        same = (one.value, one.verdict, one.answer, rest)
        assert same == (other.value, other.verdict, other.answer, other.parts)
    assert watched.pending == 0 and watched.names == ("number",)


def test_a_hidden_function_that_hangs_or_fails_changes_no_reward(watched):
    words = ["wait 1", "raise 1", "1", "2"]
    found = scores_of(watched, [sample(word, "1", row={}) for word in words])
    assert [one.value for one in found] == [2.0, 2.0, 2.0, 0.0]
    assert [one.verdict for one in found] == [*[Verdict.CORRECT] * 3, Verdict.WRONG]
    assert [one.parts["hidden/slow"] for one in found] == [0.0, None, 0.25, 0.25]


def test_waiting_gives_whole_scores_only_and_as_many_as_are_asked_for(watched):
    for ticket in range(6):
        watched.submit(ticket, sample("1", "1", row={}))
    found = watched.wait(30.0, at_least=4)
    assert len(found) >= 4 and watched.pending == 6 - len(found)
    found += watched.wait(30.0, at_least=watched.pending)
    assert sorted(ticket for ticket, _ in found) == list(range(6))
    assert all("hidden/vowels" in score.parts for _, score in found)
    assert watched.wait(0.1) == [] and watched.poll() == []


def test_a_reference_that_only_a_hidden_function_cannot_use_is_found():
    with RewardPool(
        ["exact"], [1.0], hidden=["number"], num_workers=1, timeout_secs=5.0
    ) as pool:
        faults = pool.check_golds([{"answer": "4"}, {"answer": "four"}])
    assert [index for index, _ in faults] == [1]
