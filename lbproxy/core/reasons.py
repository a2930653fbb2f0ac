"""Why a key is served where it is: the questions of `Pool.pick`, asked of every backend and answered in words.

They are asked in the order in which `pick` asks them, and nothing is changed by asking; a test holds both to agree.
"""

from __future__ import annotations

from lbproxy.core.account import DRAINING, Backend
from lbproxy.core.balance import Pool


def reasons(pool: Pool, h: int) -> list[tuple[Backend, str]]:
    """The whole preference list of a key's hash, each backend with the reason why it would or would not serve the key
    now. The reasons of those that would end in "may serve"; of these the first does, or of a hot key's the least
    loaded."""
    total = pool.account.total_with_one_more()
    residence = pool.residence(h)
    hot = _of_hot(pool, h, total) if h in pool.reach else {}
    return [
        (each, _obstacle(pool, each, each is residence) or hot.get(each) or _of_room(pool, each, total))
        for each in pool.walk(h)
    ]


def _obstacle(pool: Pool, backend: Backend, is_residence: bool) -> str:
    """What speaks against a backend whatever the bound says, or for one that drains; "" nothing."""
    if not backend.eligible and backend.state != DRAINING:
        return "not eligible"
    if pool.account.load(backend) >= backend.limit:
        if backend.limit:
            return f"at its max_in_flight of {backend.limit}"
        return f"at its max_connections of {backend.most_connections}"
    if not backend.eligible:
        return "draining, but the session is known: may serve" if is_residence else "draining"
    return ""


def _of_hot(pool: Pool, h: int, total: int) -> dict[Backend, str]:
    """Of each eligible backend of a hot key; none when all are at their fair shares, and the bound decides."""
    reach = pool.reach[h] if pool.spreads else 1
    replicas = list(pool.replicas(h))
    below = {
        each
        for each in replicas
        if (load := pool.account.load(each)) < each.limit and pool.bound.below_share(each.member, load, total)
    }
    if not below:
        return {}
    is_full = not below.intersection(replicas[:reach])
    following = next(each for each in replicas if each in below) if is_full else None
    found = dict.fromkeys(replicas, "hot key: at its fair share")
    found.update({each: "not among the backends of this hot key" for each in replicas[reach:] if each in below})
    found.update({each: "hot key: may serve" for each in replicas[:reach] if each in below})
    if following is not None:
        found[following] = "hot key, and those before are at their fair share: may serve"
    return found


def _of_room(pool: Pool, backend: Backend, total: int) -> str:
    """What the bound says."""
    if not pool.bound.has_room(backend.member, pool.account.load(backend), total):
        return f"at its bound of {pool.bound.slots(backend.member, total)} slots"
    return "may serve"
