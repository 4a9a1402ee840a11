"""A recipe is read as a whole: every wrong field is named, and equal recipes have equal addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimed.core.errors import ImageNotFound, InvalidRequest
from runtimed.images.recipe import load_recipe, packaged_recipes, parse_recipe


def wrong_fields(text: str) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as caught:
        parse_recipe(text)
    issues = caught.value.details["issues"]
    assert isinstance(issues, list)
    return {issue["field"]: issue["message"] for issue in issues}


def test_the_packaged_recipes_are_well_formed_and_named_like_their_files() -> None:
    assert [load_recipe(name).name for name in packaged_recipes()] == packaged_recipes() == ["default", "minimal"]


def test_every_wrong_field_is_named_at_once() -> None:
    wrong = wrong_fields(
        """
        name = "No spaces"
        distribution = "gentoo"
        variant = "huge"
        packages = ["good", "--option", 3]
        commands = ["true", " "]
        needs_mib = 0
        colour = "red"
        [environment]
        "1X" = "a"
        QUOTED = 'say "hi"'
        [files]
        "relative" = "x"
        "/a/../../etc/passwd" = "x"
        "/folder/" = "x"
        "/mode" = { content = "x", mode = "rwx" }
        "/none" = { mode = "0644" }
        """
    )

    assert set(wrong) == {
        *("name", "distribution", "variant", "packages[1]", "packages[2]", "commands[1]", "needs_mib", "colour"),
        *("environment.1X", "environment.QUOTED"),
        *('files."relative"', 'files."/a/../../etc/passwd"', 'files."/folder/"', 'files."/mode".mode', 'files."/none"'),
    }


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('packages = "curl"', "packages"),
        ('files = ["/a"]', "files"),
        ("release = 13", "release"),
        ('release = "trixie"', "distribution"),
        ('distribution = "debian"\nrelease = "noble"', "release"),
        ("needs_mib = true", "needs_mib"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(line: str, field: str) -> None:
    assert list(wrong_fields(f'name = "x"\n{line}\n')) == [field]


def test_what_is_not_toml_is_said_with_its_place() -> None:
    assert "line 2" in wrong_fields('name = "x"\nname = ?\n')["recipe"]


def test_a_missing_recipe_names_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(ImageNotFound, match="default, minimal"):
        load_recipe("defualt")
    with pytest.raises(ImageNotFound, match=r"none\.toml"):
        load_recipe(str(tmp_path / "none.toml"))


def test_a_recipe_may_be_a_file_of_the_operator(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\npackages = ["curl"]\n[files]\n"/etc/motd" = "hello"\n')

    recipe = load_recipe(str(path))

    assert (recipe.name, recipe.packages) == ("mine", ("curl",))
    assert [(file.path, file.content, file.mode) for file in recipe.files] == [("/etc/motd", "hello", 0o644)]


BASE = 'name = "x"\npackages = ["curl"]\n'


@pytest.mark.parametrize(
    "other",
    [
        BASE.replace("curl", "wget"),
        BASE + 'commands = ["true"]\n',
        BASE + '[files]\n"/a" = "b"\n',
        BASE + '[environment]\nA = "b"\n',
        BASE + 'variant = "essential"\n',
    ],
)
def test_another_content_has_another_address(other: str) -> None:
    def address(text: str) -> str:
        return parse_recipe(text).address(distribution="debian", release="trixie")

    assert address(other) != address(BASE)


def test_equal_content_has_one_address_whatever_the_order_and_the_comments() -> None:
    first = parse_recipe('name = "x"\n[environment]\nA = "1"\nB = "2"\n[files]\n"/a" = "1"\n"/b" = "2"\n')
    second = parse_recipe('# the same\nname = "x"\n[files]\n"/b" = "2"\n"/a" = "1"\n[environment]\nB = "2"\nA = "1"\n')

    assert first.address(distribution="debian", release="trixie") == second.address(
        distribution="debian", release="trixie"
    )


def test_another_release_has_another_address() -> None:
    recipe = parse_recipe(BASE)

    assert recipe.address(distribution="debian", release="trixie") != recipe.address(
        distribution="debian", release="bookworm"
    )


def test_the_space_that_a_build_needs_does_not_change_the_image() -> None:
    more = parse_recipe(BASE + "needs_mib = 9000\n")

    assert more.address(distribution="debian", release="trixie") == parse_recipe(BASE).address(
        distribution="debian", release="trixie"
    )
