"""A chat model on loopback that streams its replies, as agents ask for them."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def streaming_model(reply):
    """The URL of a model whose message is `reply(messages)`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = reply(body["messages"])
            calls = [
                {"index": place, **call} for place, call in enumerate(message.get("tool_calls", ()))
            ]
            delta = {**message, "tool_calls": calls} if calls else message
            reason = "tool_calls" if calls else "stop"
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for chunk in (choice(delta), choice({}, reason)):
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *message):
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def choice(delta, reason=None):
    """One chunk of a streamed reply."""
    choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
    return {
        "id": "1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "stub",
        "choices": choices,
    }
