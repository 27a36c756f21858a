"""A local server that speaks the Messages API: scripted answers over server-sent events, faults, and a cache
that works as the real one does (prefixes up to marked blocks, found up to twenty blocks back).

It counts a token for every four characters, as nothing better is here. Nothing leaves the machine.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "test-key"
MODELS = ("claude-opus-5-5", "claude-sonnet-5-5", "no-price-known")
LOOK_BACK = 20


@dataclass(frozen=True)
class Scripted:
    """What the server does with a request. `chunks` are bytes of the body; `then` is what happens behind
    them: the response ends, the connection is cut, or it hangs until the server is closed."""

    status: int = 200
    chunks: Sequence[bytes] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    then: str = "end"


Script = Callable[[Mapping[str, Any], "Tokens"], Scripted]


@dataclass(frozen=True)
class Tokens:
    """Of a request, as the cache has it."""

    input: int
    cached: int
    written: int


# --- scripts ---------------------------------------------------------------------


def says(
    *blocks: str | Mapping[str, Any],
    stop: str | None = None,
    model: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Script:
    """A message of texts, calls of tools (as `calls`) and thinking (as `thinks`)."""

    def script(request: Mapping[str, Any], tokens: Tokens) -> Scripted:
        return Scripted(chunks=list(events(blocks, request, tokens, stop, model, detail)))

    return script


def calls(name: str, argument: Any, id: str = "call-1") -> Mapping[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": argument}


def thinks(text: str) -> Mapping[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": "signed:" + str(len(text))}


def fails(
    status: int, kind: str, words: str = "as scripted", headers: Mapping[str, str] | None = None
) -> Script:
    body = json.dumps({"type": "error", "error": {"type": kind, "message": words}}).encode()
    return lambda request, tokens: Scripted(
        status, [body], {"content-type": "application/json", **(headers or {})}
    )


def cut(*blocks: str | Mapping[str, Any], after: int, then: str = "cut") -> Script:
    """A message of which only the first `after` events come."""

    def script(request: Mapping[str, Any], tokens: Tokens) -> Scripted:
        return Scripted(chunks=list(events(blocks, request, tokens))[:after], then=then)

    return script


def breaks_with(kind: str, after: int = 2) -> Script:
    """A message that ends in an error event."""
    body = {"type": "error", "error": {"type": kind, "message": "as scripted"}}

    def script(request: Mapping[str, Any], tokens: Tokens) -> Scripted:
        begun = list(events(["half"], request, tokens))[:after]
        return Scripted(chunks=[*begun, _event("error", body)])

    return script


def hangs(request: Mapping[str, Any], tokens: Tokens) -> Scripted:
    """No answer at all."""
    return Scripted(status=0, then="hang")


def raw(*chunks: bytes, headers: Mapping[str, str] | None = None) -> Script:
    return lambda request, tokens: Scripted(chunks=chunks, headers=headers or {})


def events(
    blocks: Sequence[str | Mapping[str, Any]],
    request: Mapping[str, Any],
    tokens: Tokens,
    stop: str | None = None,
    model: str | None = None,
    detail: Mapping[str, Any] | None = None,
) -> Iterator[bytes]:
    usage = {
        "input_tokens": tokens.input,
        "cache_read_input_tokens": tokens.cached,
        "cache_creation_input_tokens": tokens.written,
        "output_tokens": 1,
    }
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": model or request["model"],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    yield _event("message_start", {"message": message})
    size = 0
    for index, block in enumerate(blocks):
        full = {"type": "text", "text": block} if isinstance(block, str) else dict(block)
        size += len(json.dumps(full))
        yield from _block(index, full)
    tool = any(not isinstance(b, str) and b["type"] == "tool_use" for b in blocks)
    ended = stop or ("tool_use" if tool else "end_turn")
    delta: dict[str, Any] = {"stop_reason": ended, "stop_sequence": None}
    delta |= {"stop_details": detail} if detail else {}
    yield _event("message_delta", {"delta": delta, "usage": {"output_tokens": 1 + size // 4}})
    yield _event("message_stop", {})


def _block(index: int, block: dict[str, Any]) -> Iterator[bytes]:
    kind = block["type"]
    empty: Mapping[str, Any] = {
        "text": {"type": "text", "text": ""},
        "thinking": {"type": "thinking", "thinking": "", "signature": ""},
        "tool_use": {**block, "input": {}},
    }[kind]
    yield _event("content_block_start", {"index": index, "content_block": empty})
    for delta in _deltas(kind, block):
        yield _event("content_block_delta", {"index": index, "delta": delta})
    yield _event("content_block_stop", {"index": index})


def _deltas(kind: str, block: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    match kind:
        case "text":
            for at in range(0, len(block["text"]), 50_000):
                yield {"type": "text_delta", "text": block["text"][at : at + 50_000]}
        case "thinking":
            yield {"type": "thinking_delta", "thinking": block["thinking"]}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            text = json.dumps(block["input"])
            yield {"type": "input_json_delta", "partial_json": text[: len(text) // 2]}
            yield {"type": "input_json_delta", "partial_json": text[len(text) // 2 :]}


def _event(kind: str, body: Mapping[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **body})}\n\n".encode()


# --- the cache -------------------------------------------------------------------


class Cache:
    """Prefixes of requests that were marked, by digest, with their tokens."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def tokens(self, request: Mapping[str, Any]) -> Tokens:
        """Of a request, which is then known."""
        digest = hashlib.sha256(str(request["model"]).encode())
        total, marks, prefixes = 0, [], []
        for number, block in enumerate(_blocks(request)):
            marked = "cache_control" in block
            plain = json.dumps({k: v for k, v in block.items() if k != "cache_control"}, sort_keys=True)
            total += len(plain) // 4
            digest.update(plain.encode())
            prefixes.append((digest.hexdigest(), total))
            if marked:
                marks.append(number)
        if len(marks) > 4:
            raise ValueError(f"{len(marks)} blocks are marked for the cache; the API takes 4")
        cached = 0
        for mark in marks:
            for key, size in prefixes[max(0, mark - LOOK_BACK + 1) : mark + 1]:
                cached = max(cached, size) if key in self._known else cached
        self._known |= {prefixes[m][0] for m in marks}
        end = prefixes[marks[-1]][1] if marks else 0
        return Tokens(total - max(end, cached), cached, max(0, end - cached))


def _blocks(request: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """In the order in which the API reads them."""
    yield from request.get("tools", ())
    yield from request.get("system", ())
    for message in request["messages"]:
        for block in message["content"]:
            yield {"role": message["role"], **block}


# --- the server ------------------------------------------------------------------


@dataclass
class Server:
    """`scripts` are taken one after another; `requests` are those that were answered, `keys` theirs."""

    url: str
    scripts: list[Script] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    counted: list[Tokens] = field(default_factory=list)
    cache: Cache = field(default_factory=Cache)
    closed: threading.Event = field(default_factory=threading.Event)

    def answer(self, key: str | None, request: dict[str, Any]) -> Scripted:
        none = Tokens(0, 0, 0)
        if key != KEY:
            return fails(401, "authentication_error", "invalid x-api-key")(request, none)
        if request["model"] not in MODELS:
            return fails(404, "not_found_error", f"model: {request['model']}")(request, none)
        self.requests.append(request)
        if not self.scripts:
            return fails(400, "invalid_request_error", "the script has ended")(request, none)
        tokens = self.cache.tokens(request)
        self.counted.append(tokens)
        return self.scripts.pop(0)(request, tokens)


@contextmanager
def serving(*scripts: Script) -> Iterator[Server]:
    """A server on a free port of this machine."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server = Server(f"http://127.0.0.1:{http.server_address[1]}", list(scripts))
    http.scripted = server  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closed.set()
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # small writes one by one would each wait for an acknowledgement

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        server: Server = self.server.scripted  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/messages":
            self.send_error(404)
            return
        # The SDK sends its key as a bearer token since its version 2.
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        scripted = server.answer(self.headers.get("x-api-key") or bearer, body)
        self.close_connection = True
        if scripted.status:
            self.send_response(scripted.status)
            headers = {"content-type": "text/event-stream", **scripted.headers}
            for name, value in {**headers, "transfer-encoding": "chunked", "connection": "close"}.items():
                self.send_header(name, value)
            self.end_headers()
            for chunk in scripted.chunks:
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        if scripted.then == "end":
            self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()
        if scripted.then == "hang":
            server.closed.wait()
