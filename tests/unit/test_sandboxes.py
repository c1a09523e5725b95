"""Following a kubepods tree, on ordinary directories: inotify does not care."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_agent.node import inotify
from cni_agent.node.processes import FromCgroups
from cni_agent.node.sandboxes import Sandboxes, hierarchies
from cni_agent.node.whereabouts import Whereabouts

UID = "2c48913c-b29f-11e7-9350-020968147796"
OTHER = "863b91d4-4b68-4efa-917f-4b560e3e86aa"


class Watched:
    def __init__(self, *roots: Path) -> None:
        self.changed: list[str] = []
        self.overflows: list[int] = []
        self.sandboxes = Sandboxes(map(str, roots), self.changed.append, lambda: self.overflows.append(1))
        self.sandboxes.look()

    def read(self) -> list[str]:
        self.changed.clear()
        self.sandboxes.read()
        return list(self.changed)

    def names(self) -> dict[str, set[str]]:
        return {uid: {Path(path).name for path in paths} for uid, paths in self.sandboxes.containers.items()}


@pytest.fixture
def watch() -> Iterator[type[Watched]]:
    made: list[Watched] = []

    class Closing(Watched):
        def __init__(self, *roots: Path) -> None:
            super().__init__(*roots)
            made.append(self)

    yield Closing
    for watched in made:
        watched.sandboxes.close()


LAYOUTS = {
    "cgroupfs": ("kubepods/besteffort", "pod{}"),
    "cgroupfs, guaranteed": ("kubepods", "pod{}"),
    "cgroupfs, kubelet root": ("kc/kubepods/burstable", "pod{}"),
    "systemd": ("kubepods.slice/kubepods-burstable.slice", "kubepods-burstable-pod{}.slice"),
    "systemd, kind": (
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice",
        "kubelet-kubepods-besteffort-pod{}.slice",
    ),
}


@pytest.mark.parametrize(("above", "pod"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_pod_comes_and_goes(tmp_path: Path, watch: type[Watched], above: str, pod: str) -> None:
    (tmp_path / above).mkdir(parents=True)
    watched = watch(tmp_path)
    directory = tmp_path / above / pod.format(UID.replace("-", "_") if "slice" in pod else UID)
    directory.mkdir()
    assert watched.read() == [UID]
    (directory / "sandbox").mkdir()
    assert watched.read() == [UID]
    assert watched.names() == {UID: {"sandbox"}}
    (directory / "sandbox").rmdir()
    assert watched.read() == [UID]
    assert watched.names() == {UID: set()}
    directory.rmdir()
    assert watched.read() == [UID]
    assert watched.names() == {}


def test_what_is_there_at_the_start_is_found(tmp_path: Path, watch: type[Watched]) -> None:
    (tmp_path / "kubepods/burstable" / f"pod{UID}" / "a").mkdir(parents=True)
    (tmp_path / "kubepods" / f"pod{OTHER}" / "b").mkdir(parents=True)
    watched = watch(tmp_path)
    assert sorted(watched.changed) == sorted([UID, OTHER])
    assert watched.names() == {UID: {"a"}, OTHER: {"b"}}


def test_directories_made_faster_than_they_are_read(tmp_path: Path, watch: type[Watched]) -> None:
    (tmp_path / "kubepods").mkdir()
    watched = watch(tmp_path)
    (tmp_path / "kubepods/burstable" / f"pod{UID}" / "sandbox").mkdir(parents=True)
    assert set(watched.read()) == {UID}
    assert watched.names() == {UID: {"sandbox"}}


def test_kubepods_made_later_and_made_anew(tmp_path: Path, watch: type[Watched]) -> None:
    watched = watch(tmp_path)
    assert not watched.sandboxes.kubepods
    for _ in range(2):
        (tmp_path / "kc/kubepods/besteffort" / f"pod{UID}" / "a").mkdir(parents=True)
        watched.read()
        assert watched.names() == {UID: {"a"}}
        shutil.rmtree(tmp_path / "kc/kubepods")
        watched.read()
        assert watched.names() == {}


def test_slice_prefix_and_id_in_one_name(tmp_path: Path, watch: type[Watched]) -> None:
    (tmp_path / "kubepods.slice").mkdir()
    watched = watch(tmp_path)
    name = f"kubepods-besteffort-pod{UID.replace('-', '_')}.slice:cri-containerd:{'9' * 64}"
    (tmp_path / name).mkdir()
    assert watched.read() == [UID]
    assert watched.names() == {UID: {name}}
    (tmp_path / name).rmdir()
    assert watched.read() == [UID]
    assert watched.names() == {}


def test_directories_that_are_no_pods_are_left_alone(tmp_path: Path, watch: type[Watched]) -> None:
    (tmp_path / "kubepods").mkdir()
    (tmp_path / "system.slice" / f"pod{UID}" / "a").mkdir(parents=True)
    watched = watch(tmp_path)
    (tmp_path / "kubepods/other" / f"pod{UID}").mkdir(parents=True)
    assert watched.read() == []
    assert watched.names() == {}


def test_the_first_hierarchy_with_pods_is_used(tmp_path: Path, watch: type[Watched]) -> None:
    for hierarchy in ("unified", "memory", "pids"):
        (tmp_path / hierarchy).mkdir()
    (tmp_path / "memory/kubepods" / f"pod{UID}").mkdir(parents=True)
    watched = watch(tmp_path / "unified", tmp_path / "memory", tmp_path / "pids")
    assert watched.sandboxes.kubepods == {f"{tmp_path}/memory/kubepods"}


def test_lost_events_cost_a_look_and_no_pod(
    tmp_path: Path, watch: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubepods" / f"pod{OTHER}").mkdir(parents=True)
    watched = watch(tmp_path)
    (tmp_path / "kubepods" / f"pod{UID}" / "a").mkdir(parents=True)
    (tmp_path / "kubepods" / f"pod{OTHER}").rmdir()
    lost = [inotify.Event(-1, inotify.Q_OVERFLOW, "")]
    monkeypatch.setattr(watched.sandboxes._inotify, "read", lambda: iter(lost))
    assert set(watched.read()) == {UID, OTHER}
    assert watched.names() == {UID: {"a"}}
    assert watched.overflows == [1]
    monkeypatch.undo()
    (tmp_path / "kubepods" / f"pod{UID}" / "b").mkdir()
    watched.read()
    assert watched.names() == {UID: {"a", "b"}}


def test_without_watches_to_be_had_a_look_still_finds(
    tmp_path: Path, watch: type[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubepods").mkdir()
    watched = watch(tmp_path)

    def none_left(path: str, mask: int) -> int:
        raise inotify.LimitReached(28, "none left", path)

    monkeypatch.setattr(watched.sandboxes._inotify, "add", none_left)
    (tmp_path / "kubepods" / f"pod{UID}").mkdir()
    watched.read()
    assert watched.sandboxes.unwatched == {f"{tmp_path}/kubepods/pod{UID}"}
    monkeypatch.undo()
    (tmp_path / "kubepods" / f"pod{UID}" / "a").mkdir()
    assert watched.read() == []
    watched.sandboxes.look()
    assert watched.names() == {UID: {"a"}}
    assert not watched.sandboxes.unwatched


def test_watches_do_not_pile_up(tmp_path: Path, watch: type[Watched]) -> None:
    (tmp_path / "kubepods").mkdir()
    watched = watch(tmp_path)
    before = len(watched.sandboxes._places)
    for _ in range(200):
        (tmp_path / "kubepods" / f"pod{UID}" / "a").mkdir(parents=True)
        watched.read()
        shutil.rmtree(tmp_path / "kubepods" / f"pod{UID}")
        watched.read()
    assert len(watched.sandboxes._places) == before
    assert watched.names() == {}


def test_processes_are_told_of_while_they_are_waited_for(tmp_path: Path, watch: type[Watched]) -> None:
    container = tmp_path / "kubepods" / f"pod{UID}" / "a"
    container.mkdir(parents=True)
    (container / "cgroup.procs").touch()
    watched = watch(tmp_path)
    (container / "cgroup.procs").write_text("1")
    assert watched.read() == []
    for _ in range(3):
        watched.sandboxes.attend(UID)
        (container / "cgroup.procs").write_text("2")
        assert watched.read() == [UID]
        watched.sandboxes.neglect(UID)
        (container / "cgroup.procs").write_text("3")
        assert watched.read() == []
    watched.sandboxes.attend(UID)
    shutil.rmtree(container.parent)
    assert watched.read() == [UID]
    assert watched.sandboxes._attended == {}


def test_a_container_that_comes_later_is_attended_too(tmp_path: Path, watch: type[Watched]) -> None:
    """A runtime that tries a sandbox again makes the second directory while the first is still there."""
    pod = tmp_path / "kubepods" / f"pod{UID}"
    (pod / "first").mkdir(parents=True)
    (pod / "first" / "cgroup.procs").touch()
    watched = watch(tmp_path)
    watched.sandboxes.attend(UID)
    (pod / "second").mkdir()
    (pod / "second" / "cgroup.procs").touch()
    assert watched.read() == [UID]
    watched.sandboxes.attend(UID)
    (pod / "second" / "cgroup.procs").write_text("1")
    assert watched.read() == [UID]
    watched.sandboxes.neglect(UID)
    (pod / "second" / "cgroup.procs").write_text("2")
    assert watched.read() == []


MOUNTINFO = """\
22 1 0:20 / /proc rw - proc proc rw
30 25 0:26 / /sys/fs/cgroup/devices rw,relatime shared:9 - cgroup cgroup rw,devices
31 25 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
33 25 0:29 / /sys/fs/cgroup/uni\\040fied rw,relatime - cgroup2 cgroup2 rw
"""


def test_hierarchies_from_mounts_and_from_a_folder(tmp_path: Path) -> None:
    mounts = hierarchies(None, MOUNTINFO)
    assert mounts == [f"/sys/fs/cgroup/{name}" for name in ("uni fied", "memory", "devices", "blkio")]
    for name in ("cpu", "memory"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    assert hierarchies(str(tmp_path), "") == [f"{tmp_path}/memory", f"{tmp_path}/cpu"]
    assert hierarchies(f"{tmp_path}/cpu/", "") == [f"{tmp_path}/cpu"]


def test_a_sandbox_is_alone_until_there_is_another_container(tmp_path: Path, watch: type[Watched]) -> None:
    directory = tmp_path / "kubepods" / f"pod{UID}"
    directory.mkdir(parents=True)
    watched = watch(tmp_path)
    where = Whereabouts("/proc", watched.sandboxes, FromCgroups())
    alone = [where.alone(UID)]
    for name in ("sandbox", "init"):
        (directory / name).mkdir()
        watched.read()
        alone.append(where.alone(UID))
    assert alone == [False, True, False]
