"""The options that create another TPU like one that exists."""

from tpuctl.cloud.models import LABEL_MAX_USD_CENTS, LABEL_TTL_S, Node, shared
from tpuctl.cloud.plan import METADATA_SETUP, SETUPS, STARTUP_SCRIPT, CreateOptions
from tpuctl.cloud.tpu import known_type
from tpuctl.cloud.ttl import user_script
from tpuctl.hardware.compute_engine import list_price, model_of

_OURS = "tpuctl-"
_MAX_DIGITS = 15


def clone_options(node: Node) -> CreateOptions:
    """Return the options that create another TPU like a node, in the same zone.

    Its limits are those it was created with. A data disk is only available in its own zone.
    """
    ttl_s, max_usd = _limits(node)
    metadata = _without_ours(node.metadata)
    script = metadata.pop(STARTUP_SCRIPT, None)
    known = {
        **shared(CreateOptions, node),
        "reserved": node.reserved and not node.reservation,
        "runtime_version": node.runtime_version or None,
        "labels": _without_ours(node.labels),
        "metadata": metadata,
    }
    return CreateOptions(
        **known,
        zones=(node.zone,),
        queued=node.queued_resource is not None,
        ttl_s=ttl_s,
        max_usd=max_usd,
        internal_ip=not node.external_ips,
        startup_script=user_script(script),
        setup=setup if (setup := node.metadata.get(METADATA_SETUP)) in SETUPS else None,
    )


def _limits(node: Node) -> tuple[float | None, float | None]:
    """Return the time to live in seconds and the budget in dollars that it was created with."""
    ttl_s, cents = (_number(node.labels.get(key)) for key in (LABEL_TTL_S, LABEL_MAX_USD_CENTS))
    if cents is None:
        return ttl_s, None
    known, model = known_type(node.accelerator_type) is not None, model_of(node)
    price = None
    if known:
        price = list_price(node.provider, node.accelerator_type, node.zone, model)
    # A budget became a time to live. Only one that is shorter than that was given as well.
    is_derived = ttl_s is not None and price and ttl_s >= int(cents / 100 / price * 3600) - 1
    return (None if is_derived else ttl_s), cents / 100


def _without_ours(known: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in known.items() if not key.startswith(_OURS)}


def _number(text: str | None) -> float | None:
    is_number = text and text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return float(text) if text and is_number else None
