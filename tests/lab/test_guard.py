"""Who may talk to the lab: its own page, at the address that was printed, under a name of this machine."""

import base64
import socket
from urllib.parse import urlsplit

import pytest

from tests.lab.fake_worker import FakeWorker
from tokenfield.lab import app as module
from tokenfield.lab import guard
from tokenfield.lab.app import Lab
from tokenfield.lab.session import Session

TOKEN = guard.new_token()


def refused(path=f"/{TOKEN}/", host="127.0.0.1", port=8080, **headers):
    headers = {"Host": f"127.0.0.1:{port}"} | {k.capitalize(): v for k, v in headers.items() if v is not None}
    return guard.refusal({k: v for k, v in headers.items() if v}, path, TOKEN, host, port)


@pytest.mark.parametrize(
    "name", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080", "127.0.0.2:8080", "LOCALHOST:8080"]
)
def test_the_lab_answers_to_its_own_names(name):
    assert refused(host="127.0.0.1", Host=name) == ""
    assert refused(Host=name, origin=f"http://{name}", upgrade="websocket") == ""


@pytest.mark.parametrize(
    "name",
    [
        "",
        "evil.example:8080",
        "localhost.evil.example:8080",
        "127.0.0.1",
        "127.0.0.1:8081",
        "localhost:8080@evil",
        "evil@localhost:8080",
        "10.0.0.1:8080",
        "127.0.0.1:99999999",
        "[::1:8080",
        "localhost:8080/x",
        "0x7f.1:8080",
    ],
)
def test_other_names_are_refused(name):
    """A name that somebody lets point at this machine, after his page was loaded, reads what it answers."""
    assert (
        guard.refusal({"Host": name}, f"/{TOKEN}/", TOKEN, "127.0.0.1", 8080)
        == "This server does not go by that name."
    )


@pytest.mark.parametrize("name", ["192.168.1.7:8080", "[fe80::1]:8080", "HOSTNAME:8080", "my.name:8080"])
def test_where_others_may_come_numbers_and_own_names_are_taken(name):
    name = name.replace("HOSTNAME", socket.gethostname())
    host = "my.name" if name.startswith("my") else "0.0.0.0"
    assert guard.refusal({"Host": name}, f"/{TOKEN}/", TOKEN, host, 8080) == ""
    assert guard.refusal({"Host": "evil.example:8080"}, f"/{TOKEN}/", TOKEN, host, 8080) != ""
    assert guard.refusal({"Host": name}, "/", TOKEN, host, 8080) != ""  # the token is needed there too


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "http://127.0.0.1:8081",
        "https://127.0.0.1:8080",
        "http://localhost:8080",
        "http://127.0.0.1:8080.evil.example",
        "file://",
    ],
)
@pytest.mark.parametrize("upgrade", [None, "websocket"])
def test_other_origins_are_refused(origin, upgrade):
    assert refused(origin=origin, upgrade=upgrade) == "Only the lab's own page may talk to it."


def test_a_websocket_must_say_where_it_comes_from():
    assert (
        refused(upgrade="websocket")
        == refused(upgrade="WebSocket")
        == "Only the lab's own page may talk to it."
    )


@pytest.mark.parametrize("path", ["/", "", "/SHORT/", "/TOKENx/", "/?TOKEN", "/a/TOKEN/", "/é/", "/%TOKEN"])
def test_other_addresses_are_refused(path):
    path = path.replace("SHORT", TOKEN[:-1]).replace("TOKEN", TOKEN)
    assert refused(path) == "This is not the address that `tokenfield lab` printed."


def test_tokens_are_long_and_differ_and_are_compared_in_constant_time(monkeypatch):
    assert len({guard.new_token() for _ in range(100)}) == 100 and len(TOKEN) >= 32
    seen = []
    monkeypatch.setattr(guard.secrets, "compare_digest", lambda a, b: seen.append((a, b)) or True)
    assert refused("/guess/") == "" and seen == [(b"guess", TOKEN.encode())]


def test_the_token_is_taken_off_the_path():
    assert guard.inner_path(f"/{TOKEN}/a/b?c=d") == "/a/b"
    assert guard.inner_path(f"/{TOKEN}") == guard.inner_path(f"/{TOKEN}/") == "/"
    assert guard.address("::1", 80, "t") == "http://[::1]:80/t/"


# -- as it is served


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A lab with a page, but with workers that do nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Session", lambda: Session(FakeWorker))
        folder = tmp_path_factory.mktemp("started")
        patch.chdir(folder)
        lab = Lab(port=0, out=folder / "out")
        lab.notified, lab.said = [], []
        lab.say = lab.said.append
        patch.setattr(lab, "_notify", lab.notified.append)
        lab.begin()
        yield lab
        lab.close()


def ask(lab, path=None, **headers):
    """The status line and the head that a server answers."""
    url = urlsplit(lab.url)
    headers = {"Host": url.netloc} | {k.replace("_", "-"): v for k, v in headers.items()}
    lines = [
        f"GET {url.path if path is None else path} HTTP/1.1",
        *(f"{k}: {v}" for k, v in headers.items() if v),
        "",
        "",
    ]
    with socket.create_connection((url.hostname, url.port), timeout=20) as wire:
        wire.sendall("\r\n".join(lines).encode())
        answer = b""
        while b"\r\n\r\n" not in answer and (more := wire.recv(65536)):
            answer += more
    return answer.partition(b"\r\n\r\n")[0].decode()


def handshake(lab, path=None, **headers):
    key = base64.b64encode(b"0123456789abcdef").decode()
    version = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec_WebSocket_Key": key,
        "Sec_WebSocket_Version": "13",
    }
    return ask(lab, path, **version, **headers)


def test_the_page_is_served_at_its_address_only(lab):
    found = ask(lab)
    assert found.startswith("HTTP/1.1 200")
    assert "Referrer-Policy: no-referrer" in found and "X-Frame-Options: DENY" in found
    for path in ("/", "/index.html", "/wrong/", "/wrong/index.html"):
        assert ask(lab, path).startswith("HTTP/1.1 403")
    assert ask(lab, Host="evil.example").startswith("HTTP/1.1 403")
    assert ask(lab, Origin="null").startswith("HTTP/1.1 403")
    assert ask(lab, urlsplit(lab.url).path + "../../etc/passwd").startswith("HTTP/1.1 404")


def test_only_the_page_gets_a_websocket(lab):
    own = urlsplit(lab.url).netloc
    assert handshake(lab, Origin=f"http://{own}").startswith("HTTP/1.1 101")
    assert handshake(lab, "/", Origin=f"http://{own}").startswith("HTTP/1.1 403")
    for origin in ("http://evil.example", "null", "", "http://127.0.0.1:1"):
        assert handshake(lab, Origin=origin).startswith("HTTP/1.1 403")
    rebound = "evil.example:" + own.rpartition(":")[2]
    assert handshake(lab, Host=rebound, Origin=f"http://{rebound}").startswith("HTTP/1.1 403")


def opened(lab, path):
    lab.notified.clear()
    lab.panel.path.value = str(path)
    lab._handle("open", None)
    return [message.text for message in lab.notified]


def test_a_page_opens_files_of_two_folders_only(lab, tmp_path):
    secret = tmp_path / "secret.toml"
    secret.write_text("password = 'hunter2'")
    inside = lab.folders[1] / "link.toml"
    inside.symlink_to(secret)
    for path in (
        secret,
        tmp_path / "not there",
        inside,
        lab.folders[1] / ".." / "x",
        "~/x.toml",
        "~root/x.toml",
        "/etc/passwd",
        "",
    ):
        (sentence,) = opened(lab, path)
        assert "in the folder that the lab was started in, or in its output folder, but was" in sentence
    inside.unlink()


@pytest.mark.parametrize(
    "text",
    ["password = 'hunter2'", "[model]\nbeta = 'hunter2'", "hunter2", "[weights]\nidentity = 'hunter2'"],
)
def test_sentences_on_the_page_do_not_repeat_what_a_file_holds(lab, text):
    (lab.folders[1] / "mine.toml").write_text(text)
    lab.said.clear()
    (sentence,) = opened(lab, "mine.toml")
    assert "hunter2" not in sentence and "password" not in sentence
    assert sentence.endswith("the terminal of the lab says why")
    assert len(lab.said) == 1 and "must" in lab.said[0]


def test_nor_do_those_that_a_worker_finds_later(lab):
    lab._opened_by_page = True
    lab.session.messages.append(module.Message("error", "`initial.n` must be at most 10, but was 4711"))
    lab.notified.clear()
    lab._show(1e9)
    assert [message.text for message in lab.notified] == ["`initial.n` must be at most 10"]
