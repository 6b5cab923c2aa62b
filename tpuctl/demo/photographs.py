"""The demo's photographs: made once, kept in the cache folder."""

from pathlib import Path

from tpuctl.demo.recipe import VERSION, list_pictures
from tpuctl.errors import MissingExtraError
from tpuctl.progress import OnProgress, silent
from tpuctl.settings import cache_dir
from tpuctl.storage.local import ensure_folder


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
