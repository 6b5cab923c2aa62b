"""A profile as a picture, where the library that draws it is installed."""

from tpuctl.errors import MissingExtraError
from tpuctl.profiling.models import Profile


def picture(profile: Profile) -> bytes:
    """Draw a profile as a PNG; raises MissingExtraError without Pillow."""
    try:
        from tpuctl.reporters._profile_png import picture as draw
    except ModuleNotFoundError as error:
        raise MissingExtraError("Drawing a PNG", extra="images", module="PIL") from error
    return draw(profile)
