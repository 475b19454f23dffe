import pathlib
import textwrap

import pytest

from rl_jax import recipe
from rl_jax.errors import ConfigError

HEAD = "from rl_jax import config as defaults\n\n\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("configs/recipes").mkdir(parents=True)


def write(body: str, name: str = "mine") -> str:
    path = f"configs/{name}.py"
    pathlib.Path(path).write_text(HEAD + textwrap.dedent(body).lstrip())
    return path


def fault(path: str) -> str:
    with pytest.raises(ConfigError) as error:
        recipe.load(path)
    assert len(str(error.value).splitlines()) <= 3
    return str(error.value)


def test_recipes_are_listed_with_the_first_line_of_their_docstring():
    pathlib.Path("configs/b.py").write_text('r"""Does b.\n\nMore."""\n')
    pathlib.Path("configs/a.py").write_text("x = 1\n")
    pathlib.Path("configs/c.py").write_text("x = = 1\n")
    pathlib.Path("configs/recipes/d.py").write_text('"""Does d."""\n')
    assert recipe.shipped() == {
        "configs/a.py": "",
        "configs/b.py": "Does b.",
        "configs/c.py": "cannot be read",
        "configs/recipes/d.py": "Does d.",
    }


def test_a_missing_file_is_answered_with_the_nearest_names():
    good = write("def get_config():\n    return defaults.stage('rl')", "quickstart")
    for path in ("configs/quickstrat.py", "quickstart", "configs/quickstart.yaml"):
        text = fault(path)
        assert "does not exist" in text
        assert f"`--config={good}`" in text
    assert f"`--config={good}:8b`" in fault("configs/quickstrt.py:8b")
    assert "is a folder" in fault("configs")


def test_a_missing_file_where_there_are_no_recipes():
    assert "a .py file" in fault("nothing.py")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("config.steps = missing", ["NameError: name 'missing' is not defined"]),
        ("config.optim.lrr = 1.0", ['"lrr" does not exist', 'Did you mean "lr"']),
        ("config.steps = '10'", ["TypeError", "steps"]),
        ("raise ValueError('size 9b')", ["ValueError: size 9b"]),
        ("raise KeyError('8b')", ["KeyError: 8b"]),
        ("open('none.txt')", ["No such file"]),
        ("import nothing_of_this_name", ["No module named 'nothing_of_this_name'"]),
        ("config = defaults.stage('rll')", ["'rll' is no kind", "stage('rl')"]),
    ],
)
def test_an_error_in_a_recipe_is_told_with_file_line_and_text(line, parts):
    path = write(
        f"""
        def get_config():
            config = defaults.stage("rl")
            {line}
            return config
        """
    )
    text = fault(path)
    assert text.startswith("configs/mine.py, line 6: ")
    for part in [*parts, *([line] if "rll" not in line else [])]:
        assert part in text


def test_a_syntax_error_is_told_with_file_line_and_text():
    text = fault(write("def get_config()\n    return 1"))
    assert text.startswith("configs/mine.py, line 4: SyntaxError: ")
    assert "def get_config()" in text


def test_arguments_too_many_or_too_few_are_told():
    path = write("def get_config():\n    return defaults.stage('rl')")
    text = fault(f"{path}:8b")
    assert "takes no argument, got '8b'" in text
    assert f"`--config={path}`" in text
    path = write("def get_config(size):\n    return defaults.stage('rl')")
    assert f"`--config={path}:ARGUMENT`" in fault(path)


def test_a_file_that_is_no_recipe_is_told():
    assert "no get_config()" in fault(write("x = 1"))
    assert "NoneType" in fault(write("def get_config():\n    pass"))
    assert "dict" in fault(write("def get_config():\n    return {'steps': 1}"))
    text = fault(
        write(
            """
            def get_config():
                config = defaults.stage("rl").unlock()
                config.optim.lrr = 1.0
                return config
            """
        )
    )
    assert "config.optim.lrr, which is not a key" in text


def test_a_recipe_does_not_inherit_from_the_one_loaded_before():
    recipe.load(write("def get_config():\n    return defaults.stage('rl')", "one"))
    assert "no get_config()" in fault(write("x = 1", "two"))


def test_a_loaded_config_is_locked():
    body = "def get_config():\n    return defaults.stage('rl').unlock()"
    assert recipe.load(write(body)).is_locked
