"""Settings from files."""

import asyncio
from pathlib import Path

import pytest

from cni_agent.invalid import Invalid
from injector.serving import files
from injector.serving.source import Documents, FileSource, Options, read_settings
from tests.injector.following import VALUES, current, hub, running, until


def test_no_files_mean_our_defaults() -> None:
    assert FileSource(None, None, None).read() == Documents()
    assert read_settings(Documents(), Options())


@pytest.mark.parametrize("text", ["a: [", "- 1", "just text", "{1: 2}", "a: &a [*a]\nb: !!python/object:os.system x"])
def test_a_text_that_is_no_mapping_is_refused_by_name(text: str) -> None:
    with pytest.raises(Invalid, match="my-values"):
        read_settings(Documents(values=text, names={"values": "my-values"}), Options())


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        read_settings(Documents(values="a: [", mesh="- 1"), Options())
    assert [violation.field for violation in caught.value.violations] == ["values", "mesh"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="--mesh"):
        FileSource(None, str(tmp_path / "absent"), None).read()


@pytest.mark.parametrize("how", ["rewrite", "rename", "symlink"])
def test_every_way_to_change_a_file_is_noticed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "values.yaml"

    async def talk() -> None:
        settings = current()
        async with running(FileSource(str(path), None, None).follow(settings, 0.02)):
            await until(lambda: "one" in hub(settings))
            if how == "rewrite":
                path.write_text(VALUES % "two")
            elif how == "rename":
                (tmp_path / "new").write_text(VALUES % "two")
                (tmp_path / "new").rename(path)
            else:
                (tmp_path / "b").mkdir()
                (tmp_path / "b/values.yaml").write_text(VALUES % "two")
                (tmp_path / "..tmp").symlink_to("b")
                (tmp_path / "..tmp").rename(tmp_path / "..data")
            await until(lambda: "two" in hub(settings))

    if how == "symlink":
        (tmp_path / "a").mkdir()
        (tmp_path / "a/values.yaml").write_text(VALUES % "one")
        (tmp_path / "..data").symlink_to("a")
        path.symlink_to("..data/values.yaml")
    else:
        path.write_text(VALUES % "one")
    asyncio.run(talk())


def test_a_file_is_read_only_when_it_rests(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("0")

    async def talk() -> list[str]:
        seen: list[str] = []

        async def follow() -> None:
            async for _ in files.changes([str(path)], files.signature([str(path)]), 0.1):
                seen.append(path.read_text())

        async with running(follow()):
            for size in range(1, 40):  # a slow writer: changed at each look
                path.write_text("x" * size)
                await asyncio.sleep(0.02)
            path.write_text("done")
            await until(lambda: "done" in seen)
        return seen

    assert asyncio.run(talk()) == ["done"]


def test_notes_on_the_settings_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def talk() -> None:
        settings = current()
        values = "{global: {hub: h, tag: t}, sidecarInjectorWebhook: {reinvocationPolicy: IfNeeded}}"
        await settings.offer(Documents(values=values))
        assert settings.live

    asyncio.run(talk())
    (said,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "reinvocationPolicy" in vars(said)["note"]
