"""What an operator may set, and what is said when it is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtimed.core.specs import Shape, SpareOrder
from runtimed.settings import ABOUT, HINTS, Settings, SettingsError, load
from runtimed.spare_list import read_spares


def test_every_setting_says_why_it_has_its_default() -> None:
    assert [name for name in HINTS if not ABOUT[name].reason] == []


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('spares = 5\nimage = "mine"\n')

    settings = load(config=file, flags={"spares": 7, "port": None})

    assert (settings.spares, settings.image, settings.port) == (7, "mine", 0)


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('spares = "two"\nvmm = "xen"\nport = 70000\nnonsense = 1\njail = 1\n')

    with pytest.raises(SettingsError) as told:
        load(config=file)

    for name in ("spares", "vmm", "port", "nonsense", "jail"):
        assert name in str(told.value)


def test_spares_are_ordered_by_image_and_shape() -> None:
    settings = load(flags={"spare_shapes": "1x1024x3072=2, tools:v2:2x4096x4096=1,"})

    small, large = Shape(vcpu=1, memory_mib=1024, disk_mib=3072), Shape(vcpu=2, memory_mib=4096, disk_mib=4096)
    assert read_spares(settings.spare_shapes) == (
        SpareOrder(shape=small, count=2),
        SpareOrder(image="tools:v2", shape=large, count=1),
    )
    assert read_spares(Settings().spare_shapes) == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2", "'2' is not [IMAGE:]VCPUxMEMORYxDISK=COUNT"),
        ("1x1024=2", "'1x1024=2' is not"),
        ("0x64x100=1", "0 vCPU is not within 1 to 16; '0x64x100=1': 64 MiB memory is not within 128 to 65536"),
        ("1x1024x3072=0", "0 spares is not within 1 to 64"),
        ("1x1024x3072=1, 1x1024x3072=2", "is there twice"),
        ("tools:=1, 9x9", "'tools:=1' is not [IMAGE:]VCPUxMEMORYxDISK=COUNT, such as 1x1024x3072=2; '9x9' is not"),
    ],
)
def test_what_is_wrong_in_the_list_of_spares_is_named(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(flags={"spare_shapes": text})

    assert str(refused.value).startswith("spare_shapes: ")
    assert told in str(refused.value)


def test_a_whole_number_does_for_a_factor(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("vcpu_overcommit = 8\n")

    assert load(config=file).vcpu_overcommit == 8.0


@pytest.mark.parametrize("text", ["spares =", "\xff"])
def test_a_file_that_is_not_toml_is_one_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_bytes(text.encode("latin-1"))

    with pytest.raises(SettingsError, match="is not TOML"):
        load(config=file)


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load(config=tmp_path / "none.toml")


def test_the_file_in_the_state_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNTIME_CONFIG", raising=False)
    (tmp_path / "config.toml").write_text("spares = 9\n")

    assert load(flags={"state_dir": tmp_path}).spares == 9


def test_folders_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("RUNTIME_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    settings = Settings()

    assert settings.state_dir == tmp_path / "state"
    assert settings.cache_dir == tmp_path / "cache" / "withruntime"
