"""Where am I: the machine, what it is, what is in it and who uses it."""

from tpuctl.runtime.detect import Detection as Detection
from tpuctl.runtime.detect import detect as detect
from tpuctl.runtime.live import live_machine as live_machine
