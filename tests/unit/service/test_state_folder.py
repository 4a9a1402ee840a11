"""The state folder: one holder, private files, and a service file that is believed only while its process lives."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from runtimed.state_folder import StateFolder, StateFolderError, start_time


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path / "state")
    made.make()
    return made


def test_a_second_service_is_told_who_holds_the_folder(folder: StateFolder) -> None:
    with folder.held(), pytest.raises(StateFolderError, match=f"pid {os.getpid()}"), folder.held():
        pass


def test_the_folder_is_free_again_afterwards(folder: StateFolder) -> None:
    with folder.held():
        pass

    with folder.held():
        pass


def test_the_key_and_the_service_file_are_their_owner_s_only(folder: StateFolder) -> None:
    folder.write_key("rtcloud_x")
    folder.announce("http://127.0.0.1:1", "0")

    for path in (folder.key, folder.service_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert folder.read_key() == "rtcloud_x"


def test_an_announced_service_is_running_until_it_withdraws(folder: StateFolder) -> None:
    folder.announce("http://127.0.0.1:1", "0")
    told = folder.running_service()

    folder.withdraw()

    assert told is not None and (told["pid"], told["url"]) == (os.getpid(), "http://127.0.0.1:1")
    assert folder.running_service() is None


def test_a_service_file_of_another_process_with_the_same_pid_is_not_believed(folder: StateFolder) -> None:
    told = {"pid": os.getpid(), "startTime": start_time(os.getpid()) - 1, "url": "", "version": ""}
    folder.service_file.write_text(json.dumps(told))

    assert folder.running_service() is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": "x"}'])
def test_a_service_file_that_cannot_be_read_is_no_service(folder: StateFolder, text: str) -> None:
    folder.service_file.write_text(text)

    assert folder.running_service() is None


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StateFolderError, match="cannot be made"):
        StateFolder(tmp_path / "file" / "state").make()


def test_progress_is_one_line_that_is_replaced(folder: StateFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.say("first")
    folder.say("second")

    assert folder.progress.read_text() == "second\n"
    assert capsys.readouterr().out == "first\nsecond\n"
