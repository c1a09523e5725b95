"""The part of a Pod that injection looks at. Everything else is skipped while decoding, and stays where it is.

Every field may be null, as in Go; a field of a wrong type is an error that names its path.
"""

from typing import Any

import msgspec

from cni_agent.values import Refused


class Port(msgspec.Struct, gc=False, frozen=True):
    """v1.ContainerPort."""

    containerPort: int = 0
    name: str | None = None
    hostPort: int | None = None
    protocol: str | None = None
    hostIP: str | None = None


class Header(msgspec.Struct, gc=False, frozen=True):
    """v1.HTTPHeader."""

    name: str = ""
    value: str = ""


class HTTPGet(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """v1.HTTPGetAction; printed as Go prints it, field by field."""

    path: str | None = None
    port: int | str | None = None
    host: str | None = None
    scheme: str | None = None
    httpHeaders: list[Header] | None = None


class TCPSocket(msgspec.Struct, gc=False, frozen=True):
    """v1.TCPSocketAction."""

    port: int | str | None = None
    host: str | None = None


class GRPC(msgspec.Struct, gc=False, frozen=True):
    """v1.GRPCAction."""

    port: int | None = None
    service: str | None = None


class Probe(msgspec.Struct, gc=False, frozen=True, omit_defaults=True):
    """v1.Probe, and v1.LifecycleHandler, which is one without a timeout and without gRPC."""

    httpGet: HTTPGet | None = None
    tcpSocket: TCPSocket | None = None
    grpc: GRPC | None = None
    timeoutSeconds: int | None = None


class Lifecycle(msgspec.Struct, gc=False, frozen=True):
    """v1.Lifecycle."""

    preStop: Probe | None = None
    postStart: Probe | None = None


class SecurityContext(msgspec.Struct, gc=False, frozen=True):
    """The ids of v1.SecurityContext and v1.PodSecurityContext."""

    runAsUser: int | None = None
    runAsGroup: int | None = None


class Container(msgspec.Struct, gc=False, frozen=True):
    """v1.Container."""

    name: str = ""
    image: str | None = None
    ports: list[Port] | None = None
    readinessProbe: Probe | None = None
    livenessProbe: Probe | None = None
    startupProbe: Probe | None = None
    lifecycle: Lifecycle | None = None
    restartPolicy: str | None = None
    securityContext: SecurityContext | None = None


class Owner(msgspec.Struct, gc=False, frozen=True):
    """metav1.OwnerReference."""

    apiVersion: str = ""
    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Named(msgspec.Struct, gc=False, frozen=True):
    """A volume or a pull secret, of which only the name matters here."""

    name: str = ""


class Metadata(msgspec.Struct, gc=False, frozen=True):
    """metav1.ObjectMeta; managedFields are passed over."""

    name: str | None = None
    generateName: str | None = None
    namespace: str | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    ownerReferences: list[Owner] | None = None


class OS(msgspec.Struct, gc=False, frozen=True):
    """v1.PodOS."""

    name: str | None = None


class Spec(msgspec.Struct, gc=False, frozen=True):
    """v1.PodSpec. A list is null where the JSON has none, which a patch must know."""

    hostNetwork: bool | None = None
    os: OS | None = None
    nodeSelector: dict[str, str | None] | None = None
    nodeName: str | None = None
    runtimeClassName: str | None = None
    serviceAccountName: str | None = None
    securityContext: SecurityContext | None = None
    containers: list[Container] | None = None
    initContainers: list[Container] | None = None
    volumes: list[Named] | None = None
    imagePullSecrets: list[Named] | None = None

    @property
    def windows(self) -> bool:
        """Whether the pod says that it is for Windows; pods older than `os` say it by their node selector."""
        if self.os is not None and self.os.name:
            return self.os.name == "windows"
        return self.nodeSelector is not None and self.nodeSelector.get("kubernetes.io/os") == "windows"


class Pod(msgspec.Struct, gc=False, frozen=True):
    """v1.Pod."""

    metadata: Metadata | None = None
    spec: Spec | None = None


def container(written: Any) -> Container:
    """The same view of a container that exists as a mapping. Raises `Refused`."""
    try:
        return msgspec.convert(written, Container)
    except msgspec.ValidationError as error:
        raise Refused(f"a valid container ({error})") from None
