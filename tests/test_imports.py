"""Who may import whom, read from the sources.

Each part knows only what lies below it: kernels nothing of ours, objectives and models
no configuration, rewards no jax, and nothing but the commands the stages.
"""

import ast
import pathlib
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MESH_AXES = {"replica", "fsdp", "tensor"}
# Thin: they read a command line and call the stages.
COMMANDS = {
    "bench",
    "convert",
    "curate",
    "evaluate",
    "generate",
    "grade",
    "load",
    "merge",
    "scaling",
    "train",
}
# Words for people, in tables of keys and in messages.
MAY_NAME_AXES = {"mesh", "config", "checks", "stages.context"}


def modules():
    """Dotted name below rl_jax -> path, kernels included."""
    found = {}
    for top, prefix in (("rl_jax", ""), ("kernels", "kernels.")):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT / top).with_suffix("").parts
            name = prefix + ".".join(part for part in parts if part != "__init__")
            found[name.removesuffix(".")] = path
    return found


MODULES = modules()


def imports(name):
    """Full dotted names of all that a module imports, wherever it stands in it.

    Names under `if TYPE_CHECKING:` are left out: nothing is imported there.
    """
    found = set()
    path = MODULES[name]
    package = ["rl_jax", *name.split(".")]
    if path.name != "__init__.py":
        package.pop()

    def visit(node):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*up, *([node.module] if node.module else [])])
            names = {f"{source}.{alias.name}" for alias in node.names}
            # Modules taken out of a package need nothing that its __init__ offers.
            if not all(name.removeprefix("rl_jax.") in MODULES for name in names):
                found.add(source)
            found.update(names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


IMPORTS = {name: imports(name) for name in MODULES}


def is_below(name, *parts):
    """True if a dotted name is one of the parts, or inside one."""
    return any(name == part or name.startswith(part + ".") for part in parts)


def reached(name):
    """Our modules that importing one brings in, through others too."""
    todo, seen = [name], set()
    while todo:
        module = todo.pop()
        if module in seen:
            continue
        seen.add(module)
        for target in IMPORTS[module]:
            inside = target.removeprefix("rl_jax.")
            todo += [inside] if inside in MODULES and inside != target else []
    return seen


def part(folder):
    return [name for name in MODULES if is_below(name, folder)]


def test_the_sources_are_found():
    parts = ("kernels", "objectives", "models", "rollout", "rewards", "data", "stages")
    for folder in parts:
        assert len(part(folder)) > 2, folder
    assert "rl_jax.objectives.policy" in IMPORTS["stages.rl"]
    assert "jax" in IMPORTS["kernels.logprob.plain"]


@pytest.mark.parametrize("name", part("kernels"))
def test_kernels_import_nothing_of_ours(name):
    ours = {x for x in IMPORTS[name] if is_below(x, "rl_jax")}
    assert all(is_below(x, "rl_jax.kernels") for x in ours), ours


@pytest.mark.parametrize("name", [*part("objectives"), *part("models")])
def test_objectives_and_models_see_no_config_and_no_run(name):
    above = (
        "config",
        "schema",
        "checks",
        "recipe",
        "command_line",
        "stages",
        "rewards",
    )
    above += ("data", "rollout", "metrics", "checkpoint", "learner", *COMMANDS)
    for target in IMPORTS[name]:
        assert not is_below(target, *(f"rl_jax.{x}" for x in above)), target
        assert not is_below(target, "ml_collections", "absl", "tensorboardX"), target


# What reads and writes model folders, the variable that overrides the choice of a
# kernel, and what measures kernels; everything else is arrays in, arrays out.
FILES = {
    "kernels.bundles",
    "kernels.estimate",
    "kernels.platform",
    "models.export",
    "models.huggingface",
    "models.huggingface_config",
    "models.huggingface_rope",
    "models.weight_files",
}


@pytest.mark.parametrize(
    "name", sorted({*part("objectives"), *part("models"), *part("kernels")} - FILES)
)
def test_maths_does_no_input_or_output(name):
    forbidden = ("os", "pathlib", "json", "logging", "io", "shutil", "safetensors")
    for target in IMPORTS[name]:
        assert not is_below(target, *forbidden), target


@pytest.mark.parametrize("name", part("rewards"))
def test_rewards_never_bring_in_jax(name):
    for module in reached(name):
        for target in IMPORTS[module]:
            forbidden = ("jax", "jaxlib", "flax", "optax", "orbax")
            assert not is_below(target, *forbidden), f"{module} imports {target}"


def test_only_commands_import_the_stages():
    for name in set(MODULES) - COMMANDS - set(part("stages")):
        for target in IMPORTS[name]:
            assert not is_below(target, "rl_jax.stages"), f"{name} imports {target}"


def test_rollout_knows_neither_rewards_nor_losses():
    for name in part("rollout"):
        for target in IMPORTS[name]:
            above = ("rewards", "objectives", "learner", "config", "stages", "data")
            assert not is_below(target, *(f"rl_jax.{x}" for x in above)), target


def test_no_two_modules_import_each_other():
    for name in MODULES:
        for target in reached(name) - {name, ""}:
            if is_below(name, target) or is_below(target, name):
                continue  # a package and what is in it
            assert name not in reached(target), f"{name} and {target}"


@pytest.mark.parametrize("name", sorted(set(MODULES) - MAY_NAME_AXES))
def test_mesh_axes_are_named_in_one_place(name):
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.value not in MESH_AXES, f"line {node.lineno}: {node.value!r}"


# What is imported when.


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "module",
    [
        "rl_jax",
        "rl_jax.config",
        "rl_jax.command_line",
        "rl_jax.train",
        "rl_jax.rewards",
    ],
)
def test_a_wrong_command_line_need_not_wait_for_jax(module):
    code = f"import sys, {module}; print('jax' in sys.modules, 'flax' in sys.modules)"
    assert run(code) == ["False", "False"]


def test_importing_everything_touches_no_device():
    names = [f"rl_jax.{name}" for name in MODULES if name]
    code = (
        f"import {', '.join(sorted(names))}\n"
        "from jax._src import xla_bridge\nprint(len(xla_bridge._backends))"
    )
    assert run(code) == ["0"]


# What is packaged.


def test_kernels_are_found_in_a_checkout_as_part_of_rl_jax():
    code = (
        "import rl_jax.kernels, rl_jax.kernels.logprob as x, os\n"
        "print(os.path.relpath(rl_jax.kernels.__file__), x.__name__)"
    )
    assert run(code) == ["kernels/__init__.py", "rl_jax.kernels.logprob"]


def packaging():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_every_folder_of_ours_is_packaged_and_no_name_but_ours_is_taken():
    listed = packaging()["packages"]
    assert all(is_below(name, "rl_jax") for name in listed), listed
    folders = {f"rl_jax.{name}".removesuffix(".") for name in MODULES}
    packages = {
        f"rl_jax.{name}".removesuffix(".")
        for name, path in MODULES.items()
        if path.name == "__init__.py"
    }
    assert sorted(listed) == sorted(packages) and packages <= folders
    assert packaging()["package-dir"] == {
        "rl_jax": "rl_jax",
        "rl_jax.kernels": "kernels",
    }
    # A folder with modules but no __init__.py would be left out in silence.
    for name, path in MODULES.items():
        assert (path.parent / "__init__.py").is_file(), name
