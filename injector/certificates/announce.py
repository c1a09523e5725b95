"""Keeps `caBundle` of webhook configurations right, and nothing else of them: server-side apply of that one field."""

import base64
import logging
from typing import Final

import msgspec

from cni_agent.apiserver import APPLY_PATCH, ApiError, ApiServer

log = logging.getLogger(__name__)

FIELD_MANAGER: Final = "initless-certs"
PATH: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class _ClientConfig(msgspec.Struct):
    caBundle: str = ""


class _Webhook(msgspec.Struct):
    name: str
    clientConfig: _ClientConfig = msgspec.field(default_factory=_ClientConfig)


class _Configuration(msgspec.Struct):
    webhooks: list[_Webhook] = []


async def announce(api: ApiServer, name: str, bundle: bytes) -> bool:
    """Makes every entry of the configuration trust `bundle`; False when there was nothing to do."""
    wanted = base64.b64encode(bundle).decode()
    try:
        found = msgspec.json.decode(await api.get(f"{PATH}/{name}"), type=_Configuration)
    except ApiError as error:
        if error.code != 404:
            raise
        raise ApiError(404, f"no MutatingWebhookConfiguration {name}; injector webhook | kubectl apply -f -") from None
    if all(entry.clientConfig.caBundle == wanted for entry in found.webhooks):
        return False
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [{"name": entry.name, "clientConfig": {"caBundle": wanted}} for entry in found.webhooks],
    }
    try:
        await api.send("PATCH", f"{PATH}/{name}", body, APPLY_PATCH, fieldManager=FIELD_MANAGER)
    except ApiError as error:
        if error.code != 409:
            raise
        # The message names the other manager. Its bundle does not match our certificate, so no pod could be
        # created: take the field, and leave a trace for whoever wonders.
        log.warning(
            "caBundle was set by another manager; taking it over", extra={"error": str(error), "configuration": name}
        )
        await api.send("PATCH", f"{PATH}/{name}", body, APPLY_PATCH, fieldManager=FIELD_MANAGER, force="true")
    return True
