"""Run by `presize_kernel` with the Python of a peer's environment: python presize_peer.py NAME.

Reads a question per line on stdin, answers on stdout: {"cpu_s"} or {"pixels", "shape"}. It imports
nothing of ours.
"""

import base64
import io
import json
import os
import sys
import time

SIDE = 224


def open_pyvips():
    """The documented best: thumbnail_buffer, no cache, one thread."""
    import pyvips

    pyvips.cache_set_max(0)

    def shrink(data):
        image = pyvips.Image.thumbnail_buffer(data, SIDE, height=SIDE, size="force")
        return image.numpy()[:, :, :3]

    return shrink


def open_pillow_simd():
    """Pillow's best form: 1.5 times the size by draft(), the exact box that it returns, Hamming."""
    from PIL import Image

    return pillow_shrink(1.5, Image.Resampling.HAMMING, exact=True)


def open_pillow_simd_as_written():
    """What its users write: twice the size by draft(), Lanczos, no box."""
    from PIL import Image

    return pillow_shrink(2.0, Image.Resampling.LANCZOS, exact=False)


def pillow_shrink(oversampling, method, *, exact):
    import numpy
    from PIL import Image

    def shrink(data):
        image = Image.open(io.BytesIO(data))
        width, height = image.size
        fitting = (d for d in (8, 4, 2) if min(width, height) / d >= oversampling * SIDE)
        divisor = next(fitting, 1)
        drafted = image.draft("RGB", (width // divisor, height // divisor))
        box = drafted[1] if drafted and exact else None
        return numpy.asarray(image.resize((SIDE, SIDE), method, box=box))

    return shrink


def open_img2dataset():
    """Its own resizer, centre crop, and the JPEG that it makes."""
    from img2dataset.resizer import Resizer

    resizer = Resizer(SIDE, "center_crop", False)

    def shrink(data):
        encoded, *_, error = resizer(io.BytesIO(data))
        if error:
            sys.exit(error)
        return encoded

    return shrink


CANDIDATES = {
    "pyvips": open_pyvips,
    "pillow-simd": open_pillow_simd,
    "pillow-simd-as-written": open_pillow_simd_as_written,
    "img2dataset": open_img2dataset,
}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    shrink = CANDIDATES[sys.argv[1]]()
    for line in sys.stdin:
        question = json.loads(line)
        with open(question["path"], "rb") as file:
            data = file.read()
        start = time.process_time()
        small = shrink(data)
        answer = {"cpu_s": time.process_time() - start}
        if question.get("pixels"):
            pixels = base64.b64encode(small.tobytes()).decode()
            answer = {"pixels": pixels, "shape": small.shape}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
