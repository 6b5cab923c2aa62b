"""What to try when a program does not fit. Pure."""

from collections.abc import Iterator

from tpuctl.compile.models import Compilation, Question, Try

# The program itself lies in the same memory.
KEEP_FREE = 0.98
REMAT_KERAS = "build the model in `with keras.RematScope(mode='full'):`"
# In a step of the user's own nobody but them can do it.
REMAT = {
    "jax": "wrap each layer in jax.checkpoint, and ask again",
    "tensorflow": "wrap each layer in tf.recompute_grad, and ask again",
}


def advise(question: Question, compilation: Compilation) -> Iterator[Try]:
    """Ways to need less memory, the cheapest first."""
    smaller = _smaller_batch(question, compilation)
    if smaller:
        yield Try(
            "smaller-batch",
            f"a batch of {smaller:,}, if memory grows with the batch",
            f"--batch {smaller}",
        )
    if question.dtype != "bf16" and question.target.kind == "function":
        yield Try("bf16", "activations in bfloat16 take half the memory", "--dtype bf16")
    if question.training and compilation.framework != "MLIR":
        yield Try(
            "remat",
            "compute activations again in the backward pass instead of keeping them",
            REMAT.get(compilation.framework, REMAT_KERAS),
        )


def _smaller_batch(question: Question, compilation: Compilation) -> int | None:
    """The batch at which memory should suffice, a multiple of 8 for each device where possible."""
    examples, available = compilation.examples, compilation.hbm_available_bytes
    grows = compilation.hbm_needed_bytes - compilation.fixed_bytes
    if not examples or not available or question.target.kind == "file" or grows <= 0:
        return None
    devices = question.slice.devices
    share = (KEEP_FREE * available - compilation.fixed_bytes) / grows
    per_device = int(examples / devices * share)
    per_device = per_device // 8 * 8 or per_device
    return per_device * devices if 0 < per_device * devices < examples else None
