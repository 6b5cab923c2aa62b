"""Which photographs the demo is made of: a pure list, the same on every machine.

The sources are the photographs that scikit-image and scikit-learn carry inside their packages, so
nothing is downloaded. Each picture is a crop, flip and enlargement of one of them to the size of a
camera's file, with a little sensor noise: an enlargement alone is so smooth that its JPEG would
decode faster than any camera's.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import MissingExtraError
from tpuctl.progress import OnProgress, silent
from tpuctl.settings import cache_dir
from tpuctl.storage.local import ensure_folder

SUBJECTS = ("astronaut", "cat", "coffee", "flower", "galaxies", "motorcycle", "rocket", "temple")
PER_SUBJECT = 25
SIZES = ((3000, 2000), (3072, 2048), (2816, 1880), (3264, 2176))
VERSION = 1


@dataclass(frozen=True)
class Picture:
    """One photograph to be made. The crop is in fractions of the source: left, top, scale."""

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
        """Its place below the folder of photographs; the class folder is the label."""
        return f"{self.subject}/{self.subject}-{self.number:03}.jpg"


def list_pictures(per_subject: int = PER_SUBJECT, seed: int = 0) -> list[Picture]:
    """Plan the demo's photographs, `per_subject` of each of the eight subjects."""
    rng = random.Random(f"{VERSION}-{seed}")
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


def assemble_photographs(
    per_subject: int | None = None, *, on_progress: OnProgress = silent
) -> Path:
    """Return a folder with about 200 camera-sized photographs in class folders.

    The first call takes the better part of a minute and 220 MB in the cache folder; one that was
    interrupted goes on where it stopped. Raises MissingExtraError and WriteError.
    """
    pictures = list_pictures() if per_subject is None else list_pictures(per_subject)
    folder = cache_dir() / "demo" / f"photographs-{VERSION}-{len(pictures)}"
    ensure_folder(folder)
    try:
        from tpuctl.demo._photographs import make_photographs
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "Making the demo's photographs", extra="demo", module=error.name or "scikit-image"
        ) from error
    make_photographs(pictures, folder, on_progress)
    return folder
