"""What a TPU was asked for with, read off the TPU itself, so that another like it can be made."""

from tpuctl.cloud import labels
from tpuctl.cloud.guard import own_script
from tpuctl.cloud.models import Node
from tpuctl.cloud.plan import STARTUP_SCRIPT, CreateOptions
from tpuctl.cloud.tpu import known_type
from tpuctl.hardware.types import usd_per_hour

_OURS = "tpuctl-"
_MOST_DIGITS = 15


def options_like(node: Node) -> CreateOptions:
    """The options of a create that makes such a TPU, in the same zone.

    Its limits are those that it was given. A disk can only be had where it is.
    """
    ttl_s, max_usd = _limits(node)
    return CreateOptions(
        name=node.name,
        accelerator_type=node.accelerator_type,
        zones=(node.zone,),
        spot=node.spot,
        reserved=node.reserved,
        queued=node.queued_resource is not None,
        ttl_s=ttl_s,
        max_usd=max_usd,
        runtime_version=node.runtime_version,
        network=node.network,
        subnetwork=node.subnetwork,
        internal_ip=not node.external_ips,
        service_account=node.service_account,
        labels=_foreign(node.labels),
        tags=node.tags,
        startup_script=own_script(node.metadata.get(STARTUP_SCRIPT)),
        metadata={k: v for k, v in _foreign(node.metadata).items() if k != STARTUP_SCRIPT},
        data_disks=node.data_disks,
    )


def _limits(node: Node) -> tuple[float | None, float | None]:
    """The life time (seconds) and the budget (dollars) that it was asked for with.

    A budget was turned into a life time: one that is shorter than that was given besides.
    """
    ttl_s, cents = (_number(node.labels.get(key)) for key in (labels.TTL_S, labels.MAX_USD_CENTS))
    if cents is None:
        return ttl_s, None
    known = known_type(node.accelerator_type) is not None
    price = usd_per_hour(node.accelerator_type, node.zone, spot=node.spot) if known else None
    is_derived = ttl_s is not None and price and ttl_s >= int(cents / 100 / price * 3600) - 1
    return (None if is_derived else ttl_s), cents / 100


def _foreign(known: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in known.items() if not key.startswith(_OURS)}


def _number(text: str | None) -> float | None:
    is_number = text and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    return float(text) if text and is_number else None
