"""The agent in a storm: bursts of pods, SIGKILL at any instruction, pods and Events of an API."""

import json
import random
import signal
import time
import uuid
from pathlib import Path

import pytest

from tests.kernel.api import Api
from tests.kernel.rulesets import handles, rules
from tests.kernel.running_agent import RunningAgent, run
from tests.kernel.sandbox import Node, Sandbox, eventually, in_node, write_manifest

pytestmark = pytest.mark.kernel


def pods(cgroup: Node, count: int) -> list[Sandbox]:
    return [Sandbox(cgroup.kubepods, f"10.9.{number // 250}.{number % 250 + 1}") for number in range(count)]


@in_node
def test_a_burst_of_a_hundred_pods(cgroup: Node, tmp_path: Path) -> None:
    """Half of them outside the mesh would be too easy: every tenth is, and must not be touched."""
    with RunningAgent(cgroup, tmp_path) as agent:
        made = pods(cgroup, 100)
        outside = made[::10]
        for sandbox in made:
            plain = {"containers": [{"name": "app"}]}
            write_manifest(agent.pods, sandbox.manifest(**({"spec": plain} if sandbox in outside else {})))
        for sandbox in made:
            sandbox.run()
        inside = [sandbox for sandbox in made if sandbox not in outside]
        eventually(lambda: all(agent.state(sandbox.uid) == "Captured" for sandbox in inside), 60)
        reference = rules(inside[0].netns)
        assert reference.count("chain ISTIO_") > 3
        assert {rules(sandbox.netns) for sandbox in inside} == {reference}
        assert {rules(sandbox.netns) for sandbox in outside} == {""}
        assert rules() == ""


@in_node
def test_sigkill_a_hundred_times(cgroup: Node, tmp_path: Path) -> None:
    """At random instants while pods start. In the end every pod is captured, none half-way, none twice."""
    seed = random.randrange(2**32)
    print(f"SEED={seed}")
    choices = random.Random(seed)
    agent = RunningAgent(cgroup, tmp_path, "--backend", "iptables-nft")
    made: list[Sandbox] = []
    waiting = pods(cgroup, 100)
    for number in range(100):
        agent.start(wait=False)
        deadline = time.monotonic() + choices.uniform(0.2, 0.9)
        while waiting and len(made) <= number:
            sandbox = waiting.pop()
            write_manifest(agent.pods, sandbox.manifest())
            sandbox.make_pod()
            time.sleep(choices.uniform(0, 0.3))
            sandbox.make_container()
            sandbox.start(host_seconds=choices.choice([0, 0.001, 0.01]))
            made.append(sandbox)
        time.sleep(max(0.0, deadline - time.monotonic()))
        assert agent.stop(signal.SIGKILL) == -signal.SIGKILL, agent.log_path.read_text()
    with agent:
        eventually(lambda: all(agent.snapshot()[sandbox.uid]["netns"] for sandbox in made), 60)
        eventually(lambda: {agent.state(pod.uid) for pod in made} <= {"Captured", "Adopted", "CapturedLate"}, 60)
    reference = rules(made[0].netns)
    assert reference.count("chain ISTIO_OUTPUT ") == 1
    assert {rules(sandbox.netns) for sandbox in made} == {reference}
    assert rules() == ""
    # a last agent finds nothing to do: byte for byte, handles included
    before = [handles(sandbox.netns) for sandbox in made]
    with agent:
        eventually(lambda: {agent.state(sandbox.uid) for sandbox in made} == {"Adopted"}, 60)
    assert [handles(sandbox.netns) for sandbox in made] == before


@in_node
def test_pods_from_the_api_and_events_to_it(cgroup: Node, tmp_path: Path) -> None:
    api = Api(tmp_path)
    agent = api.agent(cgroup, "--success-events")
    with agent:
        good, bad = pods(cgroup, 2)
        api.put(good.manifest())
        api.put(bad.manifest(metadata={"annotations": {"sidecar.istio.io/status": "", "initless.io/capture": "never"}}))
        good.run()
        bad.run()
        eventually(lambda: agent.state(good.uid) == "Captured")
        eventually(lambda: agent.state(bad.uid) == "InvalidAnnotation")
        eventually(lambda: len(api.api.events) == 2)
        told = {event["involvedObject"]["uid"]: event for event in api.api.events}
        assert (told[good.uid]["reason"], told[good.uid]["type"]) == ("Captured", "Normal")
        assert (told[bad.uid]["reason"], told[bad.uid]["type"]) == ("InvalidAnnotation", "Warning")
        assert "initless.io/capture" in told[bad.uid]["message"]
        api.delete(good.uid)
        eventually(lambda: good.uid not in agent.snapshot())
        eventually(lambda: 'initless_events_total{result="sent"} 2.0' in agent.page("/metrics"))
        assert api.api.tokens[-1] == "Bearer first"
        api.token.write_text("second\n")  # as the kubelet rotates it
        api.call(api.api.drop)
        eventually(lambda: api.api.tokens[-1] == "Bearer second")


@in_node
def test_a_static_pod_is_found_by_the_hash_of_its_manifest(cgroup: Node, tmp_path: Path) -> None:
    api = Api(tmp_path)
    with api.agent(cgroup, "--success-events") as agent:
        static = Sandbox(cgroup.kubepods, uid=uuid.uuid4().hex)
        annotations = dict.fromkeys(("kubernetes.io/config.hash", "kubernetes.io/config.mirror"), static.uid)
        metadata = {"uid": str(uuid.uuid4()), "annotations": {"sidecar.istio.io/status": "", **annotations}}
        api.put(static.manifest(metadata=metadata))
        static.run()
        eventually(lambda: agent.state(static.uid) == "NotInMesh")  # the kubelet has not said that it has a proxy
        assert rules(static.netns) == ""
        status = {"containerStatuses": [{"name": "istio-proxy"}], "podIPs": [{"ip": static.address}]}
        api.put(static.manifest(metadata=metadata, status=status))
        eventually(lambda: agent.state(static.uid) == "Captured")
        assert "ISTIO_OUTPUT" in rules(static.netns)
        eventually(lambda: api.api.events)
        assert api.api.events[0]["involvedObject"]["uid"] == metadata["uid"]
        api.delete(str(metadata["uid"]))
        eventually(lambda: static.uid not in agent.snapshot())


@in_node
def test_the_nodes_taint_goes_when_the_agent_is_ready(cgroup: Node, tmp_path: Path) -> None:
    api = Api(tmp_path)
    taint = {"key": "cni.istio.io/not-ready", "effect": "NoSchedule"}
    api.api.nodes["node-1"] = {"spec": {"taints": [taint]}}
    with api.agent(cgroup, "--remove-taint", taint["key"]) as agent:
        eventually(lambda: agent.said("taint removed"))
        assert api.api.nodes["node-1"]["spec"]["taints"] == []
        (sandbox,) = pods(cgroup, 1)
        api.put(sandbox.manifest())
        sandbox.run()
        eventually(lambda: agent.state(sandbox.uid) == "Captured")


@in_node
def test_a_kubeconfig_leads_to_the_api(cgroup: Node, tmp_path: Path) -> None:
    api = Api(tmp_path)
    cluster = {"server": api.api.url, "certificate-authority": str(api.token.parent / "ca.crt")}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    with RunningAgent(cgroup, tmp_path, "--node-name", "n", "--kubeconfig", str(tmp_path / "kubeconfig")):
        assert set(api.api.tokens) == {"Bearer secret"}


@in_node
def test_an_api_that_is_not_there_at_start(cgroup: Node, tmp_path: Path) -> None:
    api = Api(tmp_path)
    agent = api.agent(cgroup)
    api.stop()
    agent.start(wait=False)
    eventually(lambda: agent.said("watch ended"))
    with pytest.raises(OSError, match="503"):
        agent.page("/readyz")
    assert agent.page("/healthz") == "ok\n"
    api.start()
    eventually(agent.ready, 40)
    assert agent.stop() == 0


@in_node
def test_a_pod_whose_validation_failed_is_captured_before_the_next_try(cgroup: Node, tmp_path: Path) -> None:
    """An agent that comes late, to a pod whose istio-validation has already failed once."""
    api = Api(tmp_path)
    agent = api.agent(cgroup)
    [sandbox] = pods(cgroup, 1)
    sandbox.run()
    failed = {"name": "istio-validation", "state": {"waiting": {}}, "restartCount": 1}
    failed["lastState"] = {"terminated": {"exitCode": 126}}
    api.put(sandbox.manifest(status={"phase": "Pending", "initContainerStatuses": [failed]}))
    with agent:
        eventually(lambda: agent.state(sandbox.uid) == "Captured")
        assert rules(sandbox.netns).count("chain ISTIO_") > 3


@in_node
def test_descriptors_and_memory_do_not_grow(cgroup: Node, tmp_path: Path) -> None:
    with RunningAgent(cgroup, tmp_path) as agent:
        assert agent.process is not None
        descriptors = Path(f"/proc/{agent.process.pid}/fd")
        counts = []
        for number in range(60):
            sandbox = Sandbox(cgroup.kubepods)
            run(sandbox, agent)
            (agent.pods / f"{sandbox.uid}.json").unlink()
            sandbox.stop()
            if number % 20 == 19:
                eventually(lambda: not agent.snapshot())
                counts.append(len(list(descriptors.iterdir())))
        assert len(set(counts)) == 1, counts
