"""The text `tpu-env`: what Google tells a TPU host about its slice."""

from tpuctl.runtime.machine import Machine

FILE = "/etc/tpu/tpu-env"


def tpu_env(machine: Machine) -> dict[str, str]:
    """Read the lines `KEY: 'value'`, from the file first since that needs no network."""
    text = machine.read(FILE) or machine.metadata("instance/attributes/tpu-env") or ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip().strip("'\"") for key, colon, value in pairs if colon}
