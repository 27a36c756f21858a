"""`ucc doctor --api` against a server of this machine: what is wrong, in words, without the key."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from click.testing import CliRunner

from tests.optimise.proposers.messages_api import KEY, Script, Scripted, cut, fails, hangs, raw, says
from ucutlass.agent.api_check import check_api
from ucutlass.agent.proposers import answer_limits
from ucutlass.cli import main

MODEL = "claude-opus-5-5"
HTML = raw(b"<html>a proxy's page</html>", headers={"content-type": "text/html"})


def test_all_is_well(at: Any) -> None:
    server = at(says("ok", stop="max_tokens"))
    report = check_api(MODEL, key=KEY, base_url=server.url)
    assert (report.fault, report.words, report.fix) == ("", "", "")
    assert (report.model, report.host) == (MODEL, "127.0.0.1")
    assert 0 < report.tokens < 100 and report.dollars is not None and 0 < report.dollars < 0.001
    (request,) = server.requests
    assert request["max_tokens"] == 1


@pytest.mark.parametrize(
    ("script", "fault", "words"),
    [
        (fails(401, "authentication_error"), "key", "401"),
        (fails(403, "permission_error"), "key", "403"),
        (fails(402, "billing_error"), "account", "402"),
        (fails(404, "not_found_error"), "model", "404"),
        (fails(429, "rate_limit_error"), "account", "429"),
        (fails(529, "overloaded_error"), "service", "529"),
        (fails(500, "api_error"), "service", "500"),
        (fails(401, "authentication_error", f"the key {KEY} is not known"), "key", "[the key]"),
        (cut("half", after=2), "service", "closed connection"),
        (HTML, "service", ""),
        (raw(b""), "service", ""),
    ],
)
def test_what_the_service_says(at: Any, script: Script, fault: str, words: str) -> None:
    server = at(script)
    report = check_api(MODEL, key=KEY, base_url=server.url)
    assert report.fault == fault and words in report.words and report.fix
    assert KEY not in str(report)
    assert len(server.requests) == 1, "one call, which is not repeated"


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_that_does_not_end_is_given_up(
    at: Any, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Pings, or bytes of one event without an end, come in time each and never make a message."""
    pings = [b"event: ping\ndata: {}\n\n"] * 50

    def sends(request: Any, tokens: Any) -> Scripted:
        return Scripted(status, pings, {"content-type": "text/event-stream"}, "hang")

    report = check_api(MODEL, key=KEY, base_url=at(sends).url, whole=0.0)
    assert report.fault == "service" and "had not ended after 0 s" in report.words and "proxy" in report.fix
    monkeypatch.setattr(answer_limits, "MOST_BYTES", 1000)
    report = check_api(MODEL, key=KEY, base_url=at(sends).url)
    assert report.fault == "service" and "more than 1000 bytes" in report.words


def test_a_wrong_key_and_an_unknown_model(at: Any) -> None:
    server = at()
    report = check_api(MODEL, key="sk-wrong", base_url=server.url)
    assert report.fault == "key" and "sk-wrong" not in str(report)
    report = check_api("claude-none", key=KEY, base_url=server.url)
    assert report.fault == "model" and "claude-none" in report.words


def test_a_network_that_does_not_lead_there(at: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    report = check_api(MODEL, key=KEY, base_url=url)
    assert report.fault == "network" and "refused" in report.words and "HTTPS_PROXY" in report.fix
    report = check_api(MODEL, key=KEY, base_url="http://no-such-host.invalid")
    assert report.fault == "network" and "no-such-host.invalid" in report.words
    report = check_api(MODEL, key=KEY, base_url=at(hangs).url, timeout=0.1)
    assert report.fault == "network"


@pytest.mark.parametrize(
    "key", ["", "  ", '"sk-quoted"', "sk-two words", "sk-two\nlines", "sk-\u201ccurly\u201d"]
)
def test_a_key_that_is_none_is_not_sent(at: Any, key: str) -> None:
    server = at(says("ok"))
    report = check_api(MODEL, key=key, base_url=server.url)
    assert report.fault == "key" and "ANTHROPIC_API_KEY" in report.fix
    assert not server.requests and "sk-" not in str(report)


@pytest.mark.parametrize(
    ("key", "model", "status", "words"),
    [
        (KEY, MODEL, 0, "answers at 127.0.0.1"),
        (KEY, "claude-none", 2, "the model: "),
        ("sk-wrong", MODEL, 3, "the key: "),
        ("", MODEL, 3, "there is no API key"),
    ],
)
def test_the_command(
    at: Any, monkeypatch: pytest.MonkeyPatch, key: str, model: str, status: int, words: str
) -> None:
    server = at(says("ok"), says("ok"))
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", key)
    call = ["doctor", "--api", "--model", model]
    shown = CliRunner().invoke(main, call, prog_name="ucc")
    assert shown.exit_code == status and words in shown.output
    as_json = CliRunner().invoke(main, [*call, "--json"], prog_name="ucc")
    row = json.loads(as_json.stdout)
    assert as_json.exit_code == status and bool(row["fault"]) == bool(status)
    assert not key or key not in shown.output + as_json.output
