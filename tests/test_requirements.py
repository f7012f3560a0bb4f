"""Which requirements of docs/requirements.md have a test, read from the sources of the tests.

It looks for marks in the syntax and not among the collected tests, so that the answer is the same
when only a part of the suite runs.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
NUMBER = re.compile(r"[A-Z]-\d\d")
PAGE = TESTS.parent / "docs" / "requirements.md"

# Not built yet. Every other number of the page has a test.
OPEN: frozenset[str] = frozenset()


def requirement_numbers():
    return re.findall(r"^- \*\*([A-Z]-\d\d)\*\*", PAGE.read_text("utf-8"), re.MULTILINE)


def marks_in(source):
    """The numbers in `pytest.mark.req(...)`: in a decorator, a pytestmark or a param.

    A variable as its argument means all numbers that the file spells out, as in a table.
    """
    tree = ast.parse(source)
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    spelled_out = {text for text in texts if isinstance(text, str) and NUMBER.fullmatch(text)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "req":
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield argument.value
                else:
                    yield from spelled_out


@pytest.fixture(scope="module")
def tests_by_number():
    tests = defaultdict(set)
    for path in TESTS.rglob("*.py"):
        if "node_modules" not in path.parts:
            for number in marks_in(path.read_text("utf-8")):
                tests[number].add(path.relative_to(TESTS).as_posix())
    return tests


def test_marks_are_found_wherever_pytest_would_find_them():
    source = """
import pytest
pytestmark = pytest.mark.req("B-01")
CASE = pytest.param(1, marks=pytest.mark.req("B-02"))

@pytest.mark.req("B-03", "B-04")
@pytest.mark.parametrize("x", [1])
async def test_it(x): ...
"""
    table = """
CASES = {"B-05": ["send"], "B-06": ["accept"]}
params = [pytest.param(c, marks=pytest.mark.req(n)) for n, c in CASES.items()]
"""

    assert sorted(marks_in(source)) == ["B-01", "B-02", "B-03", "B-04"]
    assert sorted(marks_in(table)) == ["B-05", "B-06"]


def test_every_number_stands_once_on_the_page():
    numbers = requirement_numbers()

    assert len(numbers) == len(set(numbers))
    assert len(numbers) > 70
    assert set(numbers) >= OPEN


def test_every_mark_is_a_number_of_the_page(tests_by_number):
    unknown = {n: files for n, files in tests_by_number.items() if n not in requirement_numbers()}

    assert not unknown


def test_every_requirement_has_a_test(tests_by_number):
    untested = {number for number in requirement_numbers() if number not in tests_by_number}

    assert untested <= OPEN
