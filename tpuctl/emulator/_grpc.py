"""The gRPC face: what Google's own client talks to."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from tpuctl.emulator._wire import Wire, error_status, wires
from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.refusals import CODES, Refusal, refusal

_THREADS = 128
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# Without this a second emulator on the same port would get every other request of the first.
_OPTIONS = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20))

Answer = Callable[[Call], Document]
Headers = Callable[[], tuple[tuple[str, str], ...]]


class GrpcFace(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Answers every method that the emulator has, and says UNIMPLEMENTED to all others."""

    def __init__(self, answer: Answer, headers: Headers) -> None:
        self._answer, self._headers = answer, headers
        self._wires = {f"/{w.method.service}/{w.method.rpc}": w for w in wires().values()}

    def service(self, handler_call_details: Any) -> Any:
        """Find the handler of a method."""
        path: str = handler_call_details.method
        wire = self._wires.get(path)
        if wire is None:
            return grpc.unary_unary_rpc_method_handler(self._refuse(path))
        return grpc.unary_unary_rpc_method_handler(
            self._handler(wire),
            request_deserializer=wire.request.FromString,
            response_serializer=wire.reply.SerializeToString,
        )

    def _handler(self, wire: Wire) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                reply = wire.write(self._answer(wire.read(request)))
            except Refusal as error:
                self._abort(context, error)
            context.send_initial_metadata(self._headers())
            return reply

        return handle

    def _refuse(self, path: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handle(_: Any, context: grpc.ServicerContext) -> Any:
            self._abort(context, refusal("unimplemented", what=f"a method {path}"))

        return handle

    def _abort(self, context: grpc.ServicerContext, error: Refusal) -> None:
        context.send_initial_metadata(self._headers())
        status = error_status(error).SerializeToString()
        context.set_trailing_metadata((("grpc-status-details-bin", status),))
        context.abort(_CODES[CODES[error.code][0]], error.message)


def serve_grpc(answer: Answer, headers: Headers, *, port: int) -> tuple[grpc.Server, int]:
    """Start to listen on loopback; gives the server and its port, 0 where that is taken."""
    server = grpc.server(
        ThreadPoolExecutor(_THREADS, thread_name_prefix="tpuctl-emulator"), options=_OPTIONS
    )
    server.add_generic_rpc_handlers((GrpcFace(answer, headers),))
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError:
        return server, 0
    if bound:
        server.start()
    return server, bound
