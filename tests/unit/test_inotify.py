"""inotify on real directories, its limits included."""

import ctypes
import errno
from pathlib import Path

import pytest

from cni_agent.node import inotify


def test_events_of_a_directory(tmp_path: Path) -> None:
    watcher = inotify.Inotify()
    try:
        watch = watcher.add(str(tmp_path), inotify.CREATE | inotify.DELETE)
        (tmp_path / "pod1").mkdir()
        (tmp_path / "f").touch()
        (tmp_path / "pod1").rmdir()
        seen = list(watcher.read())
        assert [(event.watch, event.name) for event in seen] == [(watch, "pod1"), (watch, "f"), (watch, "pod1")]
        assert [bool(event.mask & inotify.ISDIR) for event in seen] == [True, False, True]
        assert not any(event.overflow for event in seen)
        assert list(watcher.read()) == []
    finally:
        watcher.close()


def test_a_removed_directory_ends_its_watch(tmp_path: Path) -> None:
    watcher = inotify.Inotify()
    try:
        (tmp_path / "d").mkdir()
        watch = watcher.add(str(tmp_path / "d"), inotify.CREATE)
        (tmp_path / "d").rmdir()
        assert [(event.watch, event.mask) for event in watcher.read()] == [(watch, inotify.IGNORED)]
        watcher.remove(watch)
    finally:
        watcher.close()


def test_more_events_than_the_queue_holds_are_told(tmp_path: Path) -> None:
    watcher = inotify.Inotify()
    try:
        watcher.add(str(tmp_path), inotify.CREATE | inotify.DELETE)
        limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        for number in range(limit // 2 + 10):
            (tmp_path / str(number % 2)).mkdir()
            (tmp_path / str(number % 2)).rmdir()
        assert any(event.overflow for event in watcher.read())
    finally:
        watcher.close()


def test_a_missing_directory(tmp_path: Path) -> None:
    watcher = inotify.Inotify()
    try:
        with pytest.raises(FileNotFoundError):
            watcher.add(str(tmp_path / "absent"), inotify.CREATE)
    finally:
        watcher.close()


def test_limits_name_the_setting_to_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = inotify.Inotify()

    class Exhausted:
        @staticmethod
        def inotify_add_watch(*_: object) -> int:
            ctypes.set_errno(errno.ENOSPC)
            return -1

    monkeypatch.setattr(inotify, "_LIBC", Exhausted)
    try:
        with pytest.raises(inotify.LimitReached, match="max_user_watches"):
            watcher.add(str(tmp_path), inotify.CREATE)
    finally:
        watcher.close()
