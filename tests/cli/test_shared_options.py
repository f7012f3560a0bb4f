"""Option groups: a dataclass becomes options of a command."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from pairbus.cli.shared_options import argument, flatten_options, option, option_group


@option_group
class ColorOptions:
    color: str = option("NAME", "Color to use.", envvar="TEST_COLOR", default="red")
    shade: list[int] | None = option("N", "Shades.", "--shade", "-s")


seen: list[tuple[str, int, ColorOptions]] = []
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@flatten_options
def paint(
    what: str = argument("WHAT", "What to paint."),
    *,
    colors: ColorOptions,
    count: int = option("N", "How often.", min=1, default=1),
) -> None:
    """Paint something."""
    seen.append((what, count, colors))


def run(*words: str, **environment: str) -> tuple[int, str]:
    seen.clear()
    result = CliRunner().invoke(app, words, env=environment)
    return result.exit_code, result.output


def test_a_command_gets_its_groups_as_objects() -> None:
    assert run("wall", "--color", "blue", "-s", "1", "--shade", "2", "--count", "3")[0] == 0
    assert seen == [("wall", 3, ColorOptions(color="blue", shade=[1, 2]))]


def test_a_field_keeps_its_default_and_its_environment_variable() -> None:
    run("wall")
    assert seen == [("wall", 1, ColorOptions())]
    run("wall", TEST_COLOR="green")
    assert seen == [("wall", 1, ColorOptions(color="green"))]


def test_the_help_shows_the_fields_in_the_order_of_the_parameters() -> None:
    _, text = run("--help")

    assert "Paint something." in text
    assert text.index("--color NAME") < text.index("--shade") < text.index("--count")


def test_an_invalid_value_is_a_usage_error() -> None:
    assert run("wall", "--shade", "dark")[0] == 2
