"""Pods from a folder, as files come, change, go bad and go."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cni_agent.node import inotify
from cni_agent.node.podfolder import PodFolder
from cni_agent.podview import PodView


def manifest(uid: str, name: str = "web") -> str:
    return json.dumps({"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": uid}})


def follow(folder: Path, test: Callable[[dict[str, PodView], PodFolder], Awaitable[None]]) -> None:
    async def main() -> None:
        pods: dict[str, PodView] = {}

        def changed(pod: PodView) -> None:
            pods[pod.uid] = pod

        followed = PodFolder(str(folder), changed, lambda uid: pods.pop(uid) and None)
        followed.start(asyncio.get_running_loop())
        try:
            await test(pods, followed)
        finally:
            followed.close(asyncio.get_running_loop())

    asyncio.run(main())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


def test_files_come_change_and_go(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(manifest("1"))
    (tmp_path / "b.yaml").write_text("metadata: {name: b, uid: '2'}\n")
    (tmp_path / "notes.txt").write_text("no pod")

    async def test(pods: dict[str, PodView], _: PodFolder) -> None:
        assert pods.keys() == {"1", "2"}
        (tmp_path / "c.yml").write_text("metadata: {name: c, uid: '3'}\n")
        await until(lambda: "3" in pods)
        (tmp_path / "new").write_text(manifest("1", "renamed"))
        (tmp_path / "new").rename(tmp_path / "a.json")
        await until(lambda: pods["1"].name == "renamed")
        (tmp_path / "b.yaml").unlink()
        await until(lambda: "2" not in pods)
        (tmp_path / "c.yml").write_text("metadata: {name: c, uid: '4'}\n")  # another pod by the same file
        await until(lambda: pods.keys() == {"1", "4"})
        (tmp_path / "a.json").rename(tmp_path / "a.gone")
        await until(lambda: pods.keys() == {"4"})

    follow(tmp_path, test)


def test_a_bad_file_keeps_its_last_good_version(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(manifest("1"))
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "nameless.json").write_text(manifest(""))

    async def test(pods: dict[str, PodView], _: PodFolder) -> None:
        assert pods.keys() == {"1"}
        (tmp_path / "a.json").write_text("[]")
        (tmp_path / "last.json").write_text(manifest("9"))
        await until(lambda: "9" in pods)
        assert pods.keys() == {"1", "9"}

    follow(tmp_path, test)


def test_lost_events_cost_a_look_and_no_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text(manifest("1"))

    async def test(pods: dict[str, PodView], folder: PodFolder) -> None:
        monkeypatch.setattr(folder._inotify, "read", lambda: iter([inotify.Event(-1, inotify.Q_OVERFLOW, "")]))
        (tmp_path / "b.json").write_text(manifest("2"))
        (tmp_path / "a.json").unlink()
        folder._happened()
        assert pods.keys() == {"2"}

    follow(tmp_path, test)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        follow(tmp_path / "absent", lambda *_: asyncio.sleep(0))
