"""Every check there is, by the code of the failure that it sees."""

from collections.abc import Callable

from tpuctl.diagnosis import check_devices as devices
from tpuctl.diagnosis import check_environment as environment
from tpuctl.diagnosis import check_packages as packages
from tpuctl.diagnosis import check_state as state
from tpuctl.diagnosis.finding import Finding, View

CHECKS: dict[str, Callable[[View], Finding | None]] = {
    "F01": state.lock_held,
    "F02": state.foreign_lockfile,
    "F03": state.unseen_lock,
    "F04": state.accel_owned,
    "F05": state.vfio_busy,
    "F07": state.own_notebook,
    "F08": devices.no_chip_to_open,
    "F09": devices.v6e_without_driver,
    "F10": devices.v5e_without_nodes,
    "F11": devices.vbar_out_of_reach,
    "F12": devices.chips_kept_from_container,
    "F13": devices.hugepages_off,
    "F14": devices.mixed_chips,
    "F15": packages.jax_without_libtpu,
    "F16": environment.platforms_contradict,
    "F17": packages.tpu_demanded_without_libtpu,
    "F18": packages.ancient_jaxlib,
    "F19": packages.jaxlib_mismatch,
    "F20": packages.libtpu_of_tensorflow,
    "F21": packages.empty_accelerator_type,
    "F22": packages.libtpu_nobody_asked_for,
    "F24": packages.torch_xla_mismatch,
    "F25": packages.tensorflow_beside_torch_xla,
    "F26": packages.two_libtpus,
    "F27": packages.colab_without_tensorflow,
    "F29": packages.tensorflow_without_tpu,
    "F30": packages.pjrt_variables_missing,
    "F32": packages.several_tensorflows,
    "F33": packages.protobuf_out_of_range,
    "F34": packages.keras_of_another_time,
    "F35": environment.keras_on_cpu,
    "F36": environment.library_path_missing,
    "F37": packages.lightning_without_xla,
    "F38": packages.libtpu_sdk_unusable,
    "F42": environment.old_tpu_driver,
    "F43": environment.metadata_silent,
    "F44": environment.torch_xla_without_metadata,
    "F45": environment.bounds_missing,
    "F46": environment.type_unreadable,
    "F47": environment.hostnames_are_a_sentence,
    "F48": environment.no_google_client,
    "F49": environment.preempted,
    "F50": environment.name_is_local,
    "F53": environment.too_few_addresses,
    "F54": environment.addresses_without_port,
    "F55": environment.several_hosts,
    "F61": environment.accelerate_told_otherwise,
    "F64": environment.bucket_scope_missing,
    "F69": environment.precision_variables,
    "F72": devices.p100_without_kernels,
    "F74": state.busy_and_unseen,
}
