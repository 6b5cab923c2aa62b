"""The list of images that the demo makes, the same on every machine.

The sources are the images inside the packages scikit-image and scikit-learn, so nothing is
downloaded. Each image is a crop of one of them, flipped and enlarged to the size of a camera
file, plus sensor noise: an enlargement alone is so smooth that its JPEG would decode faster than a
camera's.
"""

import random
from dataclasses import dataclass

SUBJECTS = ("astronaut", "cat", "coffee", "flower", "galaxies", "motorcycle", "rocket", "temple")
PER_SUBJECT = 25
SIZES = ((3000, 2000), (3072, 2048), (2816, 1880), (3264, 2176))
VERSION = 1


@dataclass(frozen=True)
class Picture:
    """One image to make; left, top and scale of the crop are fractions of the source."""

    subject: str
    number: int
    left: float
    top: float
    scale: float
    flip: bool
    gain: float
    width: int
    height: int
    quality: int
    noise_seed: int

    @property
    def name(self) -> str:
        """Path below the folder of images; its class folder is the label."""
        return f"{self.subject}/{self.subject}-{self.number:03}.jpg"


def list_pictures(per_subject: int = PER_SUBJECT) -> list[Picture]:
    """Plan the demo's images, `per_subject` of each of the eight subjects."""
    rng = random.Random(f"{VERSION}-0")  # noqa: S311 (repeatable)
    pictures = []
    for subject in SUBJECTS:
        for number in range(per_subject):
            scale = rng.uniform(0.5, 0.95)
            width, height = rng.choice(SIZES)
            pictures.append(
                Picture(
                    subject,
                    number,
                    left=rng.uniform(0, 1 - scale),
                    top=rng.uniform(0, 1 - scale),
                    scale=scale,
                    flip=rng.random() < 0.5,
                    gain=rng.uniform(0.85, 1.15),
                    width=width,
                    height=height,
                    quality=rng.choice((85, 88, 90, 92)),
                    noise_seed=rng.randrange(2**32),
                )
            )
    return pictures
