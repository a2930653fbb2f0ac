"""What operators' decisions would come to in a pool, told before anything is done: the weights, and who serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lbproxy.control.admin.view import Decision, Rejected
from lbproxy.control.pool_state import PoolState
from lbproxy.core.account import DRAINING
from lbproxy.core.ring import MAX_TOKENS


def coming_to_rest(
    before: PoolState, state: PoolState, decisions: Sequence[Decision]
) -> tuple[dict[str, float], list[str]]:
    """The weights of a pool and who serves, once everything has come to rest: those that are down now stay so,
    newcomers turn out well. Raises Rejected for a backend that there is none of."""
    of = {decision.backend: decision for decision in decisions}
    weights = _weights_after(state, of)
    serving = [
        name
        for name, weight in weights.items()
        if weight
        and not _drains_after(state, name, of.get(name))
        and (name in before.serving or before.states.get(name, DRAINING) == DRAINING or name not in before.states)
    ]
    return weights, serving


def check_tokens(state: PoolState, decisions: Sequence[Decision]) -> None:
    """Before any ring is built. Raises Rejected for weights that make one too large."""
    weights = _weights_after(state, {decision.backend: decision for decision in decisions})
    tokens = sum(weights.values()) * state.spec.vnodes
    if tokens > MAX_TOKENS:
        raise Rejected(422, f"these weights make {tokens:,.0f} tokens, more than {MAX_TOKENS:,}")


def _weights_after(state: PoolState, decisions: Mapping[str, Decision]) -> dict[str, float]:
    names = [backend.name for backend in state.spec.backends]
    for name in decisions:
        if name not in names:
            raise Rejected(404, f"pool {state.spec.name} has no backend {name}")
    return {name: _weight_after(state, name, decisions.get(name)) for name in names}


def _weight_after(state: PoolState, name: str, decision: Decision | None) -> float:
    if decision is None or decision.weight is ...:
        return state.wanted(name)
    if decision.weight is None:
        return next(backend.weight for backend in state.spec.backends if backend.name == name)
    assert isinstance(decision.weight, float)
    return decision.weight


def _drains_after(state: PoolState, name: str, decision: Decision | None) -> bool:
    if decision is None or decision.is_drained is ...:
        return state.overrides.is_drained(state.spec.name, name)
    return bool(decision.is_drained)
