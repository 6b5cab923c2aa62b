"""A gRPC service that answers what a test tells it to: for replies that no emulator should give."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

STATUS_DETAILS = "grpc-status-details-bin"


class Refusal:
    """An error, with whatever details come with it."""

    def __init__(self, code: int, message: str, *details: Message) -> None:
        self.code, self.message, self.details = code, message, details

    def status(self) -> Status:
        """As it is sent, in a reply or in an operation."""
        status = Status(code=self.code, message=self.message)
        for detail in self.details:
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        return status


Reply = Any  # a message to send, a Refusal, or a function of the request's bytes


class TpuService:
    """Answers each method with what is planned for it, the last plan for ever."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.headers: Sequence[tuple[str, str]] = ()
        self.closing = threading.Event()
        self._plans: dict[str, deque[Reply]] = {}

    def answer(self, method: str, *replies: Reply) -> None:
        """Plan the replies of a method such as "GetNode"."""
        self._plans[method] = deque(replies)

    def hang(self, _: bytes) -> Message:
        """A reply that never comes."""
        self.closing.wait()
        return AnyMessage()

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.requests)

    def _handle(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.requests.append((method, request))
        plan = self._plans[method]
        reply = plan.popleft() if len(plan) > 1 else plan[0]
        if callable(reply):
            reply = reply(request)
        context.send_initial_metadata(tuple(self.headers))
        if isinstance(reply, Refusal):
            details = ((STATUS_DETAILS, reply.status().SerializeToString()),)
            context.set_trailing_metadata(details if reply.details else ())
            code = next(code for code in grpc.StatusCode if code.value[0] == reply.code)
            context.abort(code, reply.message)
        return _bytes(reply)

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Listen on loopback; gives the address."""
        server = grpc.server(ThreadPoolExecutor(16), handlers=[_Handlers(self._handle)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            self.closing.set()
            server.stop(None).wait()


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, handle: Callable[[str, bytes, Any], bytes]) -> None:
        self._handle = handle

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._handle(method, request, context)
        )


def _bytes(message: Any) -> bytes:
    if isinstance(message, bytes):
        return message
    if isinstance(message, Message):
        return message.SerializeToString()
    return bytes(type(message).serialize(message))
