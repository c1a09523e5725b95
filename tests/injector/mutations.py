"""Reviews that no API server sends: a good one with a few of its parts replaced, doubled, moved, nested or damaged."""

import json
import random
from typing import Any

from tests.injector.any_pod import ANNOTATIONS, make_pod
from tests.injector.serving import review as as_review

DEEP = "\x00deep\x00"  # stands for a nesting that Python's own encoder would refuse to write
TEXTS = [
    "",
    " ",
    "null",
    "0",
    "-1",
    "9" * 400,
    "1e999",
    "0x10",
    "true",
    "NaN",
    "istio-proxy",
    "istio-validation",
    "../../etc/passwd",
    "a" * 10_000,
    "a," * 3_000,
    "é\U0001f600\u202e\ufeff",
    "\ud800",
    "\x00\x1b[31m\r\n",
    "{{ .Values }}",
    "%s%n{0}$(A)",
    "{" * 600,
    "[" * 3_000,
    "a: &a [*a]",
    "&a [&b [x, x], *b]",
    "!!python/object/apply:os.system [true]",
    "1970-01-01",
    "10.0.0.0/8",
    "::/0",
    "80,443",
    '{"name":"istio-proxy"}',
    '{"containers":[{"name":"istio-proxy","env":[{"name":[]}]}]}',
    '{"containers":[{"name":"istio-proxy","env":{"a":1},"resources":[]}],"initContainers":[{}]}',
    '{"initContainers":["istio-validation","istio-proxy"],"containers":["app"],"volumes":["data"]}',
    '[{"name":{}},{"name":null}]',
    '{"v":{"v":{"v":[]}}}',
]
SCALARS = [None, True, False, 0, -1, 1.5, -0.0, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, float("nan"), float("inf")]
KEYS = ["", "name", "containers", "env", "metadata", "spec", "$patch", "a/b~c", "\ud800", "constructor", "k" * 5_000]

UNTYPED = ["env", "resources", "volumeMounts", "args", "envFrom", "emptyDir", "csi", "imagePullPolicy", "restartPolicy"]


class Doubled(dict[str, Any]):
    """A mapping that is written with one of its keys twice; the readers differ in which one they take."""

    def __init__(self, content: dict[str, Any], key: str, second: Any) -> None:
        super().__init__(content)
        self._again = (key, second)

    def items(self) -> Any:
        """What the encoder writes."""
        return [*super().items(), self._again]


def any_body(chance: random.Random) -> bytes:
    """One request body of one of the kinds."""
    kind = chance.random()
    if kind < 0.1:
        return chance.randbytes(chance.randint(0, 300))
    body = as_review(make_pod(chance))
    if kind < 0.3:
        return damaged(bytearray(body), chance)
    document = json.loads(body)
    if kind > 0.6:
        if chance.random() < 0.7:  # most that any_pod makes up are refused, and then nothing is merged
            document["request"]["object"]["metadata"].pop("annotations", None)
        for _ in range(chance.choice((1, 2, 4))):
            chance.choice((annotate, garnish))(document, chance)
        return written(document)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        document = mutated(document, chance)
    body = written(document)
    return damaged(bytearray(body), chance) if kind < 0.4 else body


def mutated(document: Any, chance: random.Random) -> Any:
    """The document with one of its nodes changed, in place where it can be."""
    holder, key = node(document, chance)
    if holder is None:
        return anything(chance)
    how = chance.randrange(9)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif how == 1:
        place, last = node(document, chance)  # what stands here gets the content of another place
        holder[key] = json.loads(json.dumps(place[last])) if place is not None else None
    elif how == 2 and isinstance(holder, dict):
        holder[chance.choice(KEYS)] = holder.pop(key)
    elif how == 3:
        holder[key] = [holder[key]]
    elif how == 4:
        holder[key] = {chance.choice(KEYS): holder[key]}
    elif how == 5 and isinstance(holder[key], dict) and holder[key]:
        holder[key] = Doubled(holder[key], chance.choice(list(holder[key])), anything(chance))
    elif how == 6:
        annotate(document, chance)
    else:
        holder[key] = anything(chance)
    return document


def node(document: Any, chance: random.Random) -> tuple[Any, Any]:
    """A place in the document: what holds it, and the key there. Mostly within the pod."""
    holder, key, place = None, None, document
    if chance.random() < 0.85:
        request = document.get("request") if isinstance(document, dict) else None
        place = request.get("object") if isinstance(request, dict) else None
    while isinstance(place, dict | list) and place and (holder is None or chance.random() < 0.85):
        holder = place
        key = chance.choice(list(place)) if isinstance(place, dict) else chance.randrange(len(place))
        place = holder[key]
    return holder, key


def annotate(document: Any, chance: random.Random) -> None:
    """A nasty value for an annotation that injection reads."""
    pod = document.get("request") if isinstance(document, dict) else None
    for step in ("object", "metadata", "annotations"):
        if not isinstance(pod, dict):
            return
        pod = pod.setdefault(step, {})
    if isinstance(pod, dict):
        pod[chance.choice(list(ANNOTATIONS))] = chance.choice(TEXTS)


def garnish(document: Any, chance: random.Random) -> None:
    """A value of any type where the typed reading of a pod does not look, and merging comes across it."""
    spec = document["request"]["object"]["spec"]
    lists = [spec[name] for name in ("containers", "initContainers", "volumes") if spec.get(name)]
    item = chance.choice(chance.choice(lists))
    if chance.random() < 0.3 and "istio-proxy" not in (other["name"] for other in spec["containers"]):
        item["name"] = "istio-proxy"
    value = anything(chance)
    if chance.random() < 0.5:
        value = [{chance.choice(KEYS): anything(chance), "name": anything(chance)}, value]
    item[chance.choice(UNTYPED)] = value


def anything(chance: random.Random, depth: int = 0) -> Any:
    """A value of any type."""
    how = chance.random()
    if how < 0.35 or depth > 3:
        return chance.choice(SCALARS)
    if how < 0.7:
        return chance.choice(TEXTS)
    if how < 0.72:
        return DEEP
    if how < 0.86:
        return [anything(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    return {chance.choice(KEYS): anything(chance, depth + 1) for _ in range(chance.randint(0, 3))}


def written(document: Any) -> bytes:
    """The JSON, or nearly: NaN and lone surrogates are written as they are, as other encoders do too."""
    deep = "[" * 30_000 + "]" * 30_000
    return json.dumps(document).replace(json.dumps(DEEP), deep).encode()


def damaged(body: bytearray, chance: random.Random) -> bytes:
    """The body after a few accidents on the way."""
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(body) + 1)
        how = chance.randrange(4)
        if how == 0:
            body[at : at + 1] = bytes([chance.randrange(256)])
        elif how == 1:
            del body[at : at + chance.randint(1, 30)]
        elif how == 2:
            body[at:at] = body[at : at + chance.randint(1, 60)]
        else:
            body[at:at] = chance.choice([b"null", b'""', b"[]", b"{}", b"-1", b"1e999", b"true", b"\\u0000", b"\xff"])
    return bytes(body)
