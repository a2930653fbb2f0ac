"""The OpenAPI description says what the admin API does: no more, no less, however it is asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import jsonschema  # type: ignore[import-untyped]
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from lbproxy.control.admin import openapi
from lbproxy.control.admin.app import build_app
from lbproxy.control.admin.guard import Guard
from lbproxy.control.admin.page import add_page
from lbproxy.observe.journal import Journal
from tests.page_world import World, equal_pool
from tests.running import Backends, Proxy, Traffic, backend_list
from tests.test_admin import Instance

Json = dict[str, Any]

TOKEN: Final = "correct-horse"
DOCUMENT: Final = json.loads(json.dumps(openapi.description()))
# What does not end, or ends the instance, has tests of its own.
APART: Final = ("/v1/events", "/page/live", "/v1/drain")
EXAMPLES: Final = 25
DESCRIBED: Final = {
    (path, method) for path, item in DOCUMENT["paths"].items() for method in item if method != "parameters"
}


# What is described


def test_every_route_is_described_and_nothing_else() -> None:
    app = build_app(Instance(), Journal(lambda level, event, fields: None), Guard())
    add_page(app, World(equal_pool(2)))
    served = {
        (route.resource.canonical, route.method.lower())
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert served == DESCRIBED


def test_every_reference_leads_somewhere_and_every_component_is_used() -> None:
    used = set(_references(DOCUMENT))
    components = {
        f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in DOCUMENT["components"][kind]
    }
    assert used == components - {"#/components/schemas/Event"}
    for shape in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(shape)


def test_every_operation_has_a_name_a_tag_and_problems() -> None:
    operations = [
        operation for item in DOCUMENT["paths"].values() for name, operation in item.items() if name != "parameters"
    ]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    for operation in operations:
        assert set(operation["tags"]) <= tags
        assert {"421", "500"} <= operation["responses"].keys()
        assert operation["summary"].endswith(".")
        if "writing" in operation["tags"]:
            assert operation["security"] == [{"token": []}]
            assert {"401", "403"} <= operation["responses"].keys()


def test_the_operations_page_has_every_operation_but_those_that_the_page_itself_asks() -> None:
    text = (Path(__file__).parent.parent / "docs" / "operations.md").read_text()
    for path, method in DESCRIBED:
        if not path.startswith("/page/"):
            assert f"`{method.upper()} {path}" in text, (method, path)


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _references(each)


# What is answered


def closed(shape: Any) -> Any:
    """The same with every object closed: no member but those that are named."""
    if isinstance(shape, list):
        return [closed(each) for each in shape]
    if not isinstance(shape, dict):
        return shape
    made = {name: closed(each) for name, each in shape.items()}
    is_object = made.get("type") == "object" and isinstance(made.get("properties"), dict)
    return made | {"additionalProperties": False} if is_object and "additionalProperties" not in made else made


OPEN: Final = ("Problem", "Event")
SHAPES: Final = {
    name: shape if name in OPEN else closed(shape) for name, shape in DOCUMENT["components"]["schemas"].items()
}


def check(document: Any, name: str) -> None:
    """Hold a document against a shape, every member of it."""
    shape = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SHAPES}}
    jsonschema.Draft202012Validator(shape, format_checker=jsonschema.FormatChecker()).validate(document)


def shape_of(path: str, method: str, status: str = "200") -> str:
    answer = DOCUMENT["paths"][path][method]["responses"][status]
    name: str = answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    return name


def started(folder: Path, ports: dict[str, int], **pool: Any) -> Proxy:
    token_file = folder / "token"
    token_file.write_text(TOKEN)
    pools = {"api": {"backends": backend_list(ports), "ring": {"vnodes": 64}, **pool}}
    admin = {"listen": "127.0.0.1:0", "token_file": str(token_file)}
    return Proxy(folder, ports, pools=pools, admin=admin, drain={"timeout": "500ms"})


async def test_the_documents_of_an_instance_under_traffic_have_these_shapes_and_no_other_members(
    tmp_path: Path,
) -> None:
    async with Backends("b1", "b2", "b3") as backends:
        pins = [{"key": "ann", "backend": "b1"}]
        with started(tmp_path, backends.ports, pins=pins, health={"path": "/", "interval": "200ms"}) as proxy:
            traffic = Traffic(proxy.port, 4)
            url = f"http://127.0.0.1:{proxy.admin_port}"
            async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {TOKEN}"}) as client:
                await _decide_and_plan(client)
                await traffic.until_answered(500)
                await traffic.stop()
                for path, item in DOCUMENT["paths"].items():
                    answer = item.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
                    if "$ref" in answer.get("application/json", {}).get("schema", {}):
                        real = path.format(pool="api", backend="b1") + ("?key=ann" if "explain" in path else "")
                        async with client.get(real) as told:
                            assert told.status == 200
                            check(await told.json(), shape_of(path, "get"))
                async with client.get("/v1/pools/api/explain?key=ann&steps=1") as told:
                    explained = await told.json()
                    assert (len(explained["preference"]), explained["further"]) == (1, 2)
                async with client.get("/v1/openapi.json") as told:
                    assert await told.json() == DOCUMENT
                async with client.get("/v1/events?after=0") as feed:
                    assert feed.content_type == "text/event-stream"
                    await _read_events(feed)
                async with client.post("/v1/drain") as told:
                    assert told.status == 202
                    check(await told.json(), shape_of("/v1/drain", "post", "202"))
            assert await asyncio.to_thread(proxy.wait) == 0


async def _decide_and_plan(client: aiohttp.ClientSession) -> None:
    backends = "/v1/pools/api/backends"
    change = {"weight": 2, "ttl": "10m", "reason": "a test"}
    async with client.patch(f"{backends}/b1", json=change) as told:
        check(await told.json(), "DecidedBackend")
    async with client.patch(backends, json={"backends": {"b2": {"state": "drain"}}}) as told:
        check(await told.json(), "DecidedPool")
    async with client.post("/v1/plan", json={"pool": "api", "backends": {"b1": {"weight": 3}}}) as told:
        check(await told.json(), "ChangePlan")
    async with client.post("/v1/plan") as told:
        check(await told.json(), "ConfigPlan")
    pools = "pools: {x: {backends: [{url: 'http://127.0.0.1:1'}]}}"
    for text in (f"listen: 127.0.0.1:1\n{pools}", f"listen: unix:/none/socket\n{pools}", "listen: [}"):
        async with client.post("/v1/check", data=text.encode()) as told:
            check(await told.json(), "Checked")
    async with client.post("/v1/reload") as told:
        check(await told.json(), "Reloaded")
    async with client.delete(f"{backends}/b2/overrides") as told:
        check(await told.json(), "DecidedBackend")


async def _read_events(feed: aiohttp.ClientResponse) -> None:
    """The events up to the last reload."""
    async for line in feed.content:
        if line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            check(event, "Event")
            if event["kind"] == "reload":
                return


# What is asked at random

CHANGES: Final = (
    ("/v1/pools/{pool}/backends", "patch"),
    ("/v1/pools/{pool}/backends/{backend}", "patch"),
)


def likely(document: Json) -> Json:
    """The same, but with names of which most are there and durations that are neither too short nor too long, so that
    more than refusals is met."""
    known = {"pool": ["api", "none"], "backend": ["b1", "b2", "b3", "b9"], "name": ["page.css", "ring.js", "x"]}
    made: Json = json.loads(json.dumps(document))
    for item in made["paths"].values():
        for parameter in item.get("parameters", ()):
            parameter["schema"] = {"enum": known[parameter["name"]]}
    for path, method in CHANGES:
        body = made["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        body["ttl"]["anyOf"][0] = {"enum": ["10m", "1h30m", "2s"]}
        wanted = body
        if "backends" in body:
            body["backends"]["propertyNames"] = {"enum": known["backend"]}
            wanted = body["backends"]["additionalProperties"]["properties"]
        wanted["weight"]["anyOf"][0] = {"enum": [0, 0.001, 0.5, 1, 7.25]}
    return made


# What no schema of single parameters can say: that exactly one of two is wanted; that a text is a configuration.
NOT_HELD_TO: Final[dict[str, list[Any]]] = {
    "GET /v1/pools/{pool}/explain": [positive_data_acceptance],
    "POST /v1/plan": [positive_data_acceptance],
}
SCHEMA: Final = schemathesis.openapi.from_dict(likely(DOCUMENT))


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Nobody listens at its backends."""
    with started(tmp_path_factory.mktemp("proxy"), {"b1": 1, "b2": 2, "b3": 3}) as made:
        yield made


@SCHEMA.exclude(path=list(APART)).parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
def test_whatever_is_asked_is_answered_as_described(proxy: Proxy, case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(
        base_url=f"http://127.0.0.1:{proxy.admin_port}",
        headers={"Authorization": f"Bearer {TOKEN}"},
        excluded_checks=NOT_HELD_TO.get(case.operation.label, []),
    )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/v1/pools/api/backends/b1", {"weight": openapi.HEAVIEST}),
        ("PATCH", "/v1/pools/api/backends", {"backends": {"b1": {"weight": openapi.HEAVIEST}}}),
        ("POST", "/v1/plan", {"pool": "api", "backends": {"b1": {"weight": openapi.HEAVIEST}}}),
    ],
)
async def test_weights_that_no_ring_can_carry_are_refused_before_one_is_built(
    proxy: Proxy, method: str, path: str, body: Json
) -> None:
    url = f"http://127.0.0.1:{proxy.admin_port}"
    began = time.monotonic()
    async with (
        aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=10)) as client,
        client.request(method, path, json=body, headers={"Authorization": f"Bearer {TOKEN}"}) as answer,
    ):
        assert answer.status == 422
        assert "tokens, more than" in (await answer.json())["detail"]
    assert time.monotonic() - began < 8.0  # milliseconds on a quiet machine; the ring would take minutes


def test_nothing_of_that_was_a_bug(proxy: Proxy) -> None:
    assert proxy.named("admin request failed") == []
    assert proxy.named("unexpected error") == []
    assert proxy.process is not None
    assert proxy.process.poll() is None
