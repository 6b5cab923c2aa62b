"""A plain JAX loop with a NumPy loader that augments digits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.pipelines.inputs import stage

SOURCE = "https://github.com/jax-ml/jax/blob/main/examples/mnist_classifier.py"
NEEDS = "jax"
STAGES = {
    "shift": r"shift",
    "noise": r"noise",
}


IMAGES = np.random.default_rng(0).random((4096, 784), "float32")
LABELS = np.eye(10, dtype="float32")[np.arange(4096) % 10]
READY = IMAGES[:128]


@stage(lambda images: READY)
def shift(images: Any) -> Any:
    random = np.random.default_rng()
    moved = [np.roll(each.reshape(28, 28), random.integers(-2, 3, 2), (0, 1)) for each in images]
    return np.stack(moved).reshape(-1, 784)


@stage(lambda images: READY)
def noise(images: Any) -> Any:
    return images + np.random.default_rng().normal(0, 0.1, images.shape).astype("float32")


def make() -> Any:
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(len(IMAGES))
        for start in range(0, len(order), 128):
            chosen = order[start : start + 128]
            yield noise(shift(IMAGES[chosen])), LABELS[chosen]


@jax.jit
def update(weights: Any, images: Any, labels: Any) -> Any:
    def loss(weights: Any) -> Any:
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(images @ weights) * labels, axis=1))

    return weights - 0.1 * jax.grad(loss)(weights)


if __name__ == "__main__":
    weights = jnp.zeros((784, 10))
    for images, labels in make():
        weights = update(weights, images, labels)
