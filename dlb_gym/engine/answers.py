"""What becomes of a response with mechanisms: when it comes, whether it is one, who tries again."""

from __future__ import annotations

from dlb_gym.engine.affinity import learn
from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import (
    AFFINITY,
    ATTEMPTS,
    BATCHING,
    DOWN_REPLICAS,
    DOWN_S,
    FINAL_ERRORS,
    HASHED,
    HIT_RATE,
    HIT_TOKENS,
    KIND,
    LAST_ANSWER_S,
    LATE_ERRORS,
    NO_CACHE,
    PREFIX_TOKENS,
    RETRY_HEAD,
    RETRY_TAIL,
    RETRYING,
    ROOT_CRASHED,
    ROOT_REPLICAS,
    SENT_S,
    SESSION_HASH,
    TRIES,
    UNREACHABLE,
    Extras,
    session_map,
)
from dlb_gym.engine.faults import is_cut, tau_at
from dlb_gym.engine.layout import (
    DONE_S,
    KEY,
    KEY_SHIFT,
    NEXT,
    NONE,
    PROMPT_TOKENS,
    SERVER,
    State,
)

HIT_MEMORY = 0.05
"""Weight of the newest prefix in a root's share of hits (ours; the paper gives no rule)."""

SERVED, FAILED, TRIED_AGAIN = range(3)


@part
def answer_time_s(
    r: int, i: int, j: int, slot: int, tau_s: float, state: State, extras: Extras
) -> float:
    """Responses of an arc keep their order: none overtakes one that left on a longer way."""
    done_s = state.request[r, slot, DONE_S]
    direct_s = done_s + tau_at(done_s, tau_s, extras.window[r, i, j])
    return float(max(direct_s, extras.arc[r, i, j, LAST_ANSWER_S]))


@part
def way_back_s(
    r: int, i: int, j: int, slot: int, answer_s: float, tau_s: float, state: State, extras: Extras
) -> float:
    """How long a response was on its way, waiting for those before it included."""
    done_s = state.request[r, slot, DONE_S]
    direct_s = tau_at(done_s, tau_s, extras.window[r, i, j])
    return float(direct_s if done_s + direct_s == answer_s else answer_s - done_s)


@part
def outcome_of(
    r: int, i: int, j: int, slot: int, answer_s: float, step: int, state: State, extras: Extras
) -> int:
    """Takes in a response; a failed request may join the queue of those sent again."""
    more = extras.request[r, slot]
    extras.arc[r, i, j, LAST_ANSWER_S] = answer_s
    if state.request[r, slot, SERVER] != NONE:
        late = _lost_on_the_way(r, i, j, slot, answer_s, state, extras)
        if late == NONE:
            _learn(r, i, j, slot, step, extras)
            return SERVED
        more[KIND] = late
        state.request[r, slot, SERVER] = NONE
        extras.row[r, LATE_ERRORS] += 1
    if more[TRIES] < extras.flag[r, ATTEMPTS] and extras.budget[r, i] >= 1.0:
        _try_again(r, i, slot, state, extras)
        return TRIED_AGAIN
    extras.row[r, FINAL_ERRORS] += 1
    return FAILED


@part
def _lost_on_the_way(
    r: int, i: int, j: int, slot: int, answer_s: float, state: State, extras: Extras
) -> int:
    """The kind of error that a served request becomes, or NONE."""
    more = extras.request[r, slot]
    if is_cut(state.request[r, slot, DONE_S], answer_s, extras.window[r, i, j]):
        return UNREACHABLE
    down = extras.root_down[r, i]
    if more[SENT_S] < down[DOWN_S] <= answer_s:
        number = int(more[SESSION_HASH])
        if number < 0:
            number = int(state.request[r, slot, KEY]) & ((1 << KEY_SHIFT) - 1)
        if number % extras.flag[r, ROOT_REPLICAS] < down[DOWN_REPLICAS]:
            return ROOT_CRASHED
    return NONE


@part
def _learn(r: int, i: int, j: int, slot: int, step: int, extras: Extras) -> None:
    """A served request tells its root where its session is, and whether its prefix hit there.

    Prefixes that were not at home could not hit, and say nothing about those that are.
    """
    more = extras.request[r, slot]
    kind = extras.flag[r, AFFINITY]
    session_hash = int(more[SESSION_HASH])
    if kind in (NO_CACHE, HASHED) or session_hash < 0:
        return
    before = learn(session_map(extras, r, i), session_hash, j, step)
    if more[PREFIX_TOKENS] > 0.0 and before == j:
        hit = 1.0 if more[HIT_TOKENS] > 0.0 else 0.0
        extras.arc[r, i, j, HIT_RATE] += HIT_MEMORY * (hit - extras.arc[r, i, j, HIT_RATE])


@part
def _try_again(r: int, i: int, slot: int, state: State, extras: Extras) -> None:
    root = extras.root[r, i]
    extras.request[r, slot, TRIES] += 1.0
    extras.budget[r, i] -= 1.0
    if extras.flag[r, BATCHING] == 0:  # a server that took it had left out what it kept
        state.request[r, slot, PROMPT_TOKENS] += extras.request[r, slot, HIT_TOKENS]
    state.request[r, slot, NEXT] = NONE
    if root[RETRY_HEAD] == NONE:
        root[RETRY_HEAD] = slot
    else:
        state.request[r, root[RETRY_TAIL], NEXT] = slot
    root[RETRY_TAIL] = slot
    root[RETRYING] += 1
