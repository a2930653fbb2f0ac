"""The affinity cookie: found among others, believed only when signed, in time and of a backend that exists."""

from __future__ import annotations

from http.cookies import SimpleCookie

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbproxy.core.cookies import CookieAffinity
from lbproxy.core.spec import AffinityCookie

NOW = 1_800_000_000.0
BACKENDS = ["b1", "b2", "b-ü"]


def affinity(secret: str = "s3cret", pool: str = "api", **attributes: object) -> CookieAffinity:
    return CookieAffinity(AffinityCookie(secret=secret, **attributes), pool, BACKENDS)  # type: ignore[arg-type]


def value_of(line: bytes) -> bytes:
    return line.removeprefix(b"Set-Cookie: lbproxy=").split(b";")[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_written_is_read_among_other_cookies(backend: str) -> None:
    cookies = affinity()
    value = value_of(cookies.line(backend, NOW))
    assert cookies.backend([b"a=1; lbproxy=" + value + b"; b=2"], NOW + 5) == backend
    assert cookies.backend([b"a=1", b'lbproxy="' + value + b'"'], NOW) == backend
    assert cookies.backend([b"xlbproxy=" + value], NOW) is None
    assert cookies.backend([], NOW) is None


def test_another_secret_pool_or_backend_is_not_believed() -> None:
    value = value_of(affinity().line("b1", NOW))
    assert affinity(secret="other").backend([b"lbproxy=" + value], NOW) is None
    assert affinity(pool="web").backend([b"lbproxy=" + value], NOW) is None
    assert CookieAffinity(AffinityCookie(secret="s3cret"), "api", ["b2"]).backend([b"lbproxy=" + value], NOW) is None


def test_age() -> None:
    cookies = affinity(max_age=3600.0)
    line = b"lbproxy=" + value_of(cookies.line("b1", NOW))
    assert cookies.backend([line], NOW + 3599) == "b1"
    assert cookies.backend([line], NOW + 3601) is None
    assert cookies.backend([line], NOW - 30) == "b1"
    assert cookies.backend([line], NOW - 300) is None


@pytest.mark.parametrize(("seconds", "said"), [(0.5, 1), (1.0, 1), (1.5, 2), (3600.0, 3600)])
def test_a_fraction_of_a_second_does_not_take_the_cookie_away(seconds: float, said: int) -> None:
    assert b"; Max-Age=%d; " % said in affinity(max_age=seconds).line("b1", NOW)


def test_of_several_the_one_that_was_set_last_counts_if_it_is_believed() -> None:
    cookies = affinity(max_age=3600.0)
    old, new = (b"lbproxy=" + value_of(cookies.line(name, at)) for name, at in (("b1", NOW - 60), ("b2", NOW)))
    false, late, gone = b"lbproxy=nonsense", b"lbproxy=" + value_of(cookies.line("b1", NOW - 4000)), new
    for lines in ([old + b"; " + new], [new, old], [false, late + b"; " + new], [new + b"; " + false + b"; " + late]):
        assert cookies.backend(lines, NOW) == "b2"
    without_b2 = CookieAffinity(AffinityCookie(secret="s3cret"), "api", ["b1"])
    assert without_b2.backend([old, gone], NOW) == without_b2.backend([gone, old], NOW) == "b1"


def test_no_more_than_a_few_are_looked_at() -> None:
    cookies = affinity()
    good = b"lbproxy=" + value_of(cookies.line("b1", NOW))
    assert cookies.backend([b"lbproxy=x; " * 3 + good], NOW) == "b1"
    assert cookies.backend([b"lbproxy=x; " * 4 + good], NOW) is None


@given(st.binary(max_size=200))
def test_nonsense_is_never_believed_and_never_an_error(value: bytes) -> None:
    assert affinity().backend([b"lbproxy=" + value], NOW) is None


@given(st.integers(0, 60), st.integers(1, 255))
def test_one_changed_octet_is_noticed(at: int, change: int) -> None:
    value = bytearray(value_of(affinity().line("b1", NOW)))
    value[at % len(value)] ^= change
    assert affinity().backend([b"lbproxy=" + bytes(value)], NOW) is None


def test_attributes() -> None:
    line = affinity(max_age=60.0, secure=True, same_site="None", path="/app").line("b1", NOW).decode()
    morsel = SimpleCookie(line.removeprefix("Set-Cookie: "))["lbproxy"]
    assert (morsel["path"], morsel["max-age"], morsel["secure"], morsel["httponly"], morsel["samesite"]) == (
        "/app", "60", True, True, "None",
    )  # fmt: skip
    assert line.endswith("\r\n")
    assert "b1" not in line.split(";")[0]
