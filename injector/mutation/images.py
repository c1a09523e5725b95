"""Image names: HUB/NAME:TAG[-TYPE]."""

from collections.abc import Mapping
from typing import Final

from injector.settings import Settings

PROXY_IMAGE: Final = "sidecar.istio.io/proxyImage"
IMAGE_TYPE: Final = "sidecar.istio.io/proxyImageType"
_KNOWN_TYPES: Final = ("-distroless", "-debug")


def proxy_image(settings: Settings, config_type: str, annotations: Mapping[str, str]) -> str:
    """The image of istio-proxy; `config_type` is the effective ProxyConfig's image.imageType."""
    return _image(settings, settings.chart.proxy_image, config_type, annotations)


def validation_image(settings: Settings, annotations: Mapping[str, str]) -> str:
    """The image of istio-validation, for which ProxyConfig has no say."""
    return _image(settings, settings.chart.init_image, "", annotations)


def _image(settings: Settings, name: str, config_type: str, annotations: Mapping[str, str]) -> str:
    chart = settings.chart
    whole = annotations.get(PROXY_IMAGE, name)
    if "/" in whole:
        return whole
    image_type = annotations.get(IMAGE_TYPE, config_type or chart.variant)
    return f"{chart.hub}/{name}:{tag(chart.tag, image_type)}"


def tag(written: str, image_type: str) -> str:
    """The tag of the wanted type; a type that the tag already has is replaced.

    >>> tag("1.12-debug", "distroless"), tag("1.12-distroless", "default"), tag("1.12", "")
    ('1.12-distroless', '1.12', '1.12')
    """
    if not image_type:
        return written
    for suffix in _KNOWN_TYPES:
        if written.endswith(suffix):
            written = written.removesuffix(suffix)
            break
    return written if image_type == "default" else f"{written}-{image_type}"
