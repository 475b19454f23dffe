"""The generation command."""

import io

import pytest

import tiny_stage as tiny
from rl_jax import command_line, generate


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tiny.trained(tmp_path_factory.getbasetemp())[0]


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """Programs are compiled once, although each command makes an engine."""
    with tiny.compilation_cache(tmp_path_factory.mktemp("compiled")):
        yield


def answers(capsys, model, *words, prompt="Start with 9, minus 4."):
    argv = [f"--model={model}", f"--prompt={prompt}", "--max_new_tokens=8", *words]
    assert generate.main(argv) == 0
    return capsys.readouterr().out


def test_it_prints_an_answer_and_the_same_one_each_time(workdir, capsys):
    first = answers(capsys, workdir)
    assert first.strip() and first.endswith("\n")
    assert answers(capsys, workdir) == first


def test_draws_are_a_function_of_the_seed(workdir, capsys):
    words = ("--num_samples=3", "--temperature=1")
    first = answers(capsys, workdir, *words)
    heads = [line for line in first.splitlines() if line.startswith("--- ")]
    assert heads == ["--- 1", "--- 2", "--- 3"]
    assert answers(capsys, workdir, *words) == first
    assert answers(capsys, workdir, *words, "--seed=1") != first


def test_the_prompt_may_come_from_standard_input(workdir, capsys, monkeypatch):
    said = "Start with 9, minus 4."
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    assert answers(capsys, workdir, prompt="-") == answers(capsys, workdir, prompt=said)


def test_a_hugging_face_folder_answers_as_the_run_that_it_came_from(
    workdir, tmp_path, capsys
):
    folder = tiny.exported(workdir, tmp_path / "model")
    assert answers(capsys, folder) == answers(capsys, workdir)


def test_an_answer_that_was_cut_is_marked_apart_from_it(workdir, capsys):
    argv = [f"--model={workdir}", "--prompt=Start with 9.", "--max_new_tokens=1"]
    assert generate.main(argv) == 0
    shown = capsys.readouterr()
    assert "cut after 1 tokens" in shown.err and "cut" not in shown.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--num_samples=0"], "--num_samples=0"),
        (["--max_new_tokens=0"], "--max_new_tokens=0"),
        (["--temperature=-1"], "--temperature=-1"),
        (["--top_p=0"], "--top_p=0"),
        ([], "holds no model"),
    ],
)
def test_a_wrong_argument_exits_with_2_and_says_which(tmp_path, words, told, capsys):
    argv = [f"--model={tmp_path / 'none'}", "--prompt=hello", *words]
    assert command_line.exit_on_config_error(generate.main, argv) == 2
    message = capsys.readouterr().err
    assert told in message and len(message.splitlines()) <= 3
