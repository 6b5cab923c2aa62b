"""What Cloud Storage says when it refuses: dated texts, statuses and reasons."""

from tpuctl.emulator.methods import Document
from tpuctl.emulator.refusals import load_data


class StorageRefusal(Exception):
    """An error as the JSON API sends it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.headers: dict[str, str] = {}

    @property
    def document(self) -> Document:
        """The body of the reply."""
        entry = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.status, "message": self.message, "errors": [entry]}}


def refuse(kind: str, **facts: object) -> StorageRefusal:
    """Write an error of the table with these facts."""
    entry = load_data("storage_errors")["errors"][kind]
    return StorageRefusal(entry["status"], entry["reason"], entry["text"].format_map(facts))
