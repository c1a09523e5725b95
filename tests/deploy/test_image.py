"""The image as scripts/image builds it: small, whole, and without what an intruder would look for."""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.rendering import ROOT

MOST_BYTES = 120_000_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "initless.tar"
    done = subprocess.run([ROOT / "scripts/image", path], capture_output=True, text=True, check=False)
    if done.returncode and ("apt" in done.stderr or "the packages of Debian" in done.stderr):
        pytest.skip(f"needs Debian's packages: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return path


def configuration(archive: Path) -> dict[str, Any]:
    with tarfile.open(archive) as outer:
        (parts,) = json.loads(read(outer, "manifest.json"))
        found: dict[str, Any] = json.loads(read(outer, parts["Config"]))
    return found | {"layers": parts["Layers"]}


def read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def members(archive: Path) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    with tarfile.open(archive) as outer:
        for layer in configuration(archive)["layers"]:
            with tarfile.open(fileobj=io.BytesIO(read(outer, layer))) as inner:
                for member in inner:
                    yield inner, member


def test_it_is_small_and_layers_have_the_digests_they_say(archive: Path) -> None:
    assert archive.stat().st_size <= MOST_BYTES
    found = configuration(archive)
    with tarfile.open(archive) as outer:
        digests = [f"sha256:{hashlib.sha256(read(outer, layer)).hexdigest()}" for layer in found["layers"]]
    assert found["rootfs"]["diff_ids"] == digests
    assert len(digests) == 3, "the system, the dependencies, the code: an upgrade brings only the last"


def test_it_runs_as_nobody_unless_told_otherwise(archive: Path) -> None:
    assert configuration(archive)["config"]["User"] == "65532:65532"


def test_it_has_no_shell_no_package_manager_and_no_way_to_gain_rights(archive: Path) -> None:
    names = set()
    for _, member in members(archive):
        assert not member.mode & 0o6000, f"{member.name} is set-user-id"
        assert (member.uid, member.gid, member.uname) == (0, 0, "")
        if not member.isdir():
            names.add(Path(member.name).name)
    assert not names & {"sh", "bash", "dash", "busybox", "dpkg", "apt", "apt-get", "pip", "pip3", "curl", "wget", "su"}


def test_scanners_find_what_is_in_it(archive: Path) -> None:
    """Debian's packages where images without dpkg have them, Python's by their metadata at the pinned versions."""
    debian, python = set(), set()
    for inner, member in members(archive):
        if member.isfile() and "dpkg/status.d/" in member.name:
            assert b"\nVersion: " in read(inner, member.name)
            debian.add(Path(member.name).name)
        elif member.name.endswith(".dist-info/METADATA"):
            name, version = Path(member.name).parent.name.removesuffix(".dist-info").split("-")
            python.add(f"{name.replace('_', '-').lower()}=={version}")
    assert {"python3-minimal", "iptables", "nftables", "libc6"} <= debian
    lines = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    assert python and python <= set(lines)


def test_the_same_folders_give_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    subprocess.run([ROOT / "scripts/image", again], capture_output=True, check=True)
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(archive.read_bytes()).digest()


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["/usr/local/bin/cni-agent", "--version"], "cni-agent, version"),
        (["/usr/local/bin/injector", "--version"], "injector, version"),
        (["/usr/local/bin/injector", "webhook"], "kind: MutatingWebhookConfiguration"),
        (["/usr/local/bin/cni-agent", "rules", "-b", "*"], "-A PREROUTING -p tcp -j ISTIO_INBOUND"),
        (["/usr/sbin/iptables-nft", "--version"], "(nf_tables)"),
        (["/usr/sbin/iptables-legacy", "--version"], "(legacy)"),
        (["/usr/sbin/nft", "--version"], "nftables v"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_it_is_for_runs_in_it(root: Path, command: list[str], answer: str) -> None:
    done = subprocess.run(["chroot", root, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert answer in done.stdout


@pytest.fixture(scope="module")
def root(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image unpacked, for whoever may chroot."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder = tmp_path_factory.mktemp("root")
    for inner, member in members(archive):
        inner.extraction_filter = lambda found, _: found  # as it is; Debian's Python has no other way to say so
        inner.extract(member, folder)
    return folder


@pytest.mark.kernel
def test_every_module_of_ours_can_be_imported_in_it(root: Path) -> None:
    script = (
        "import importlib, pkgutil, cni_agent, injector\n"
        "for package in (cni_agent, injector):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not found.name.endswith('__main__'): importlib.import_module(found.name)\n"
    )
    done = subprocess.run(
        ["chroot", root, "/usr/bin/python3", "-I", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.kernel
def test_on_another_system_it_says_so_instead_of_making_another_image(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    other = tmp_path / "os-release"
    other.write_text("ID=ubuntu\nVERSION_CODENAME=noble\n")
    script = 'mount --bind "$1" "$(realpath /etc/os-release)" && exec daemonset/image/layers "$2" system'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", other, tmp_path / "out"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "this machine has those of noble" in done.stderr and "Containerfile" in done.stderr
    assert not list((tmp_path / "out").glob("debs/*.deb"))
