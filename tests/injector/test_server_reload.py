"""Certificates and settings that change under load: no request fails, and none is answered with half a change."""

import asyncio
import base64
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.injector.serving import (
    PATIENCE,
    SKIPPED,
    Client,
    Injector,
    make_certificates,
    review,
    serving,
)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for what should happen soon."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.05)
    assert condition(), what


def test_twenty_certificates_under_two_hundred_connections(tmp_path: Path) -> None:
    async def talk(injector: Injector) -> None:
        material = first
        stop = asyncio.Event()
        answered = [0] * 200

        async def ask(number: int, client: Client) -> None:
            while not stop.is_set():
                reply = await client.request("/inject", review(SKIPPED))
                assert reply.json()["response"]["allowed"] is True
                answered[number] += 1
                await asyncio.sleep(0.2)

        clients = [await injector.connect() for _ in range(200)]
        tasks = [asyncio.ensure_future(ask(number, client)) for number, client in enumerate(clients)]
        serials = set()
        for turn in range(20):
            material = await asyncio.to_thread(make_certificates, tmp_path, material)
            await asyncio.to_thread(injector.wait_for, "certificate loaded")
            fresh = await injector.connect()
            assert (await fresh.request("/inject", review(SKIPPED))).status == 200
            serials.add(fresh.serial())
            assert len(serials) == turn + 1, "a new connection still gets an old certificate"
            await fresh.close()
        begun = list(answered)
        await until(lambda: all(now > then for now, then in zip(answered, begun, strict=True)), "all go on")
        stop.set()
        await asyncio.gather(*tasks)  # raises what any of the 200 met
        await asyncio.gather(*(client.close() for client in clients))

    first = make_certificates(tmp_path)
    with serving(tmp_path) as injector:
        asyncio.run(talk(injector))
        assert "refused" not in injector.drain_log()


def test_a_bad_pair_keeps_the_old_one_and_says_so(tmp_path: Path) -> None:
    async def ready(injector: Injector) -> dict[str, str]:
        client = await injector.connect()
        reply = await client.request("/ready", method="GET")
        assert reply.status == 200
        await client.close()
        certificate: dict[str, str] = reply.json()["certificate"]
        return certificate

    material = make_certificates(tmp_path)
    with serving(tmp_path) as injector:
        (tmp_path / "tls.key").unlink()
        other = tmp_path / "other"
        make_certificates(other)
        shutil.copy(other / "tls.key", tmp_path / "tls.key")
        assert "is not the key of" in injector.wait_for("certificate refused")
        assert "is not the key of" in asyncio.run(ready(injector))["problem"]
        assert asyncio.run(injector.metrics())["initless_injector_certificate_stale"] == 1
        make_certificates(tmp_path, material)
        injector.wait_for("certificate loaded")
        assert "problem" not in asyncio.run(ready(injector))
        assert asyncio.run(injector.metrics())["initless_injector_certificate_stale"] == 0


def write_settings(directory: Path, generation: int) -> None:
    """Both files of a generation at once, as the kubelet does it: one rename of the `..data` symlink."""
    version = directory / f"..{generation}"
    version.mkdir(parents=True)
    mark = f"g{generation}g"
    (version / "values.yaml").write_text(f"global: {{hub: example.org/{mark}, tag: {mark}, meshID: {mark}}}\n")
    (version / "mesh.yaml").write_text(f"defaultConfig: {{proxyMetadata: {{MARK: {mark}}}}}\n")
    temporary = directory / "..data_tmp"
    temporary.symlink_to(version.name)
    temporary.rename(directory / "..data")
    for name in ("values.yaml", "mesh.yaml"):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")


def test_settings_change_whole_under_load(tmp_path: Path) -> None:
    seen: set[str] = set()

    async def ask(injector: Injector, stop: asyncio.Event) -> None:
        client = await injector.connect()
        while not stop.is_set():
            response = (await client.request("/inject", review())).json()["response"]
            marks = re.findall(rb"g\d+g", base64.b64decode(response["patch"]))
            assert len(marks) > 3
            assert len(set(marks)) == 1, f"an answer of two generations: {set(marks)}"
            seen.add(marks[0].decode())
        await client.close()

    async def talk(injector: Injector) -> None:
        stop = asyncio.Event()
        tasks = [asyncio.ensure_future(ask(injector, stop)) for _ in range(8)]
        for generation in range(1, 9):
            write_settings(settings, generation)
            await asyncio.to_thread(injector.wait_for, "settings applied")
        await until(lambda: "g8g" in seen, "the last generation is in use")
        stop.set()
        await asyncio.gather(*tasks)

    settings = tmp_path / "settings"
    write_settings(settings, 0)
    make_certificates(tmp_path)
    files = ["--values", str(settings / "values.yaml"), "--mesh", str(settings / "mesh.yaml")]
    with serving(tmp_path, *files) as injector:
        asyncio.run(talk(injector))
    assert len(seen) > 2


def test_bad_settings_keep_the_old_ones_and_say_so(tmp_path: Path) -> None:
    async def patch(injector: Injector) -> bytes:
        client = await injector.connect()
        response = (await client.request("/inject", review())).json()["response"]
        await client.close()
        return base64.b64decode(response["patch"])

    async def problem(injector: Injector) -> str:
        client = await injector.connect()
        reply = await client.request("/ready", method="GET")
        assert reply.status == 200  # it can still inject
        await client.close()
        return str(reply.json()["settings"].get("problem", ""))

    make_certificates(tmp_path)
    values = tmp_path / "values.yaml"
    values.write_text("global: {hub: example.org/good}")
    with serving(tmp_path, "--values", str(values)) as injector:
        for bad in ("global: [", "- no mapping", "global: {proxy: {statusPort: many}}"):
            values.write_text(bad)
            injector.wait_for("settings refused")
            assert str(values) in asyncio.run(problem(injector)) or "statusPort" in asyncio.run(problem(injector))
            assert asyncio.run(injector.metrics())["initless_injector_settings_stale"] == 1
            assert b"example.org/good" in asyncio.run(patch(injector))
        values.unlink()
        injector.wait_for("settings refused")
        values.write_text("global: {hub: example.org/better}")
        injector.wait_for("settings applied")
        assert asyncio.run(problem(injector)) == ""
        metrics = asyncio.run(injector.metrics())
        assert metrics["initless_injector_settings_stale"] == 0
        assert metrics['initless_injector_settings_reloads_total{result="refused"}'] == 4
        assert b"example.org/better" in asyncio.run(patch(injector))
