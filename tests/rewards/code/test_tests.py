import pytest

from rl_jax.rewards.code.tests import InputCase, Suite, UnusableTestsError, called_names


def test_a_cap_keeps_tests_from_the_whole_list():
    cases = tuple(InputCase(str(i), "") for i in range(10))
    capped = Suite("stdin", cases).capped(4).cases
    assert [case.stdin for case in capped] == ["0", "2", "5", "7"]
    assert Suite("stdin", cases).capped(10).cases == cases


def test_an_empty_list_of_tests_is_unusable():
    with pytest.raises(UnusableTestsError, match="empty"):
        Suite("stdin", ())


def test_names_that_tests_call_are_found_without_builtins_and_their_own():
    text = (
        "def same(a, b): return abs(a - b) < 1\n"
        "assert same(area(3), 4)\nassert area(len([1])) == math.floor(side(2))"
    )
    assert called_names([text]) == ("area", "side")
