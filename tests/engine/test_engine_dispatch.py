"""Which worker takes which task."""

from __future__ import annotations

import random
from collections.abc import Mapping

from ucutlass.engine.dispatch import LIVES, Dispatch, Ticket
from ucutlass.engine.errors import TaskLost
from ucutlass.engine.work import Needs, RemoteCall, TaskEntry

BOTH: Mapping[Needs, int] = {"cpu": 2, "gpu": 1}
CORES: Mapping[Needs, int] = {"cpu": 4, "gpu": 0}


def ticket(name: str, needs: Needs = "cpu", near: str = "") -> Ticket:
    return Ticket(name, RemoteCall(TaskEntry(f"m:{name}", needs, "here"), {}, near=near))


def state(**workers: Mapping[Needs, int]) -> Dispatch:
    dispatch = Dispatch()
    assert dispatch.update_workers(workers) == []
    return dispatch


def started(made: Dispatch, *tickets: Ticket) -> dict[str, str | None]:
    made.queue += tickets
    return {t.id: t.at for t in made.start()}


def test_a_worker_gets_no_more_than_it_runs() -> None:
    dispatch = state(a=BOTH)
    tickets = [ticket(f"c{i}") for i in range(4)] + [ticket("g0", "gpu"), ticket("g1", "gpu")]
    assert started(dispatch, *tickets) == {"c0": "a", "c1": "a", "g0": "a"}
    dispatch.ended(tickets[0])
    assert started(dispatch) == {"c2": "a"}
    dispatch.ended(tickets[4])
    assert started(dispatch) == {"g1": "a"}


def test_builds_go_where_cores_are_free_and_launches_where_gpus_are() -> None:
    dispatch = state(a=BOTH, farm=CORES)
    assert set(started(dispatch, *[ticket(f"c{i}") for i in range(7)]).values()) == {"a", "farm"}
    assert dispatch.total("cpu") == 6 and len(dispatch.running()) == 6
    assert started(dispatch, ticket("g", "gpu"), ticket("h", "gpu")) == {"g": "a"}


def test_a_token_stays_on_its_gpu_and_tokens_spread() -> None:
    dispatch = state(a=BOTH, b=BOTH)
    first = started(dispatch, *[ticket(f"g{i}", "gpu", near=f"t{i}") for i in range(2)])
    assert set(first.values()) == {"a", "b"}
    # Its own GPU is taken: it waits for that one, though nothing else is between.
    again = ticket("again", "gpu", near="t0")
    dispatch.ended(next(t for t in dispatch.running() if t.id == "g1"))
    assert started(dispatch, again) == {}
    dispatch.ended(next(t for t in dispatch.running() if t.id == "g0"))
    assert started(dispatch) == {"again": first["g0"]}


def test_builds_are_near_their_gpu_while_cores_are_free_there() -> None:
    dispatch = state(a=BOTH, b=BOTH)
    values = started(dispatch, *[ticket(f"c{i}", near="t") for i in range(3)])
    assert [values[f"c{i}"] for i in range(2)] == [dispatch.home["t"]] * 2 and values["c2"] != dispatch.home[
        "t"
    ]


def test_who_dies_with_a_worker_is_run_alone_and_given_up_at_last() -> None:
    dispatch = state(a=BOTH, b=BOTH)
    bad, good = ticket("bad", near="t"), ticket("good", near="t")
    first = started(dispatch, bad, good)
    assert first["bad"] == first["good"]
    (dead,) = set(first.values())
    for life in range(1, LIVES):
        left = {name: BOTH for name in ("a", "b") if name != dead}
        for lost in dispatch.update_workers(left):
            assert dispatch.died(lost) is None
        dispatch.update_workers({"a": BOTH, "b": BOTH})
        running = {t.id: t.at for t in dispatch.start()} | {t.id: t.at for t in dispatch.running()}
        assert running["bad"] != running.get("good"), "not alone"
        if good in dispatch.running():
            dispatch.ended(good)
        dead = running["bad"]
        assert len(bad.died) == life
    (lost,) = dispatch.update_workers({name: BOTH for name in ("a", "b") if name != dead})
    why = dispatch.died(lost)
    assert isinstance(why, TaskLost) and why.target == "m:bad" and len(why.workers) == LIVES
    assert not dispatch.queue and not dispatch.running() and len(good.died) == 1


def test_a_worker_is_emptied_for_who_must_be_alone() -> None:
    dispatch = state(a=CORES)
    others = [ticket(f"c{i}") for i in range(3)]
    assert len(started(dispatch, *others)) == 3
    bad = ticket("bad")
    bad.died.append("b")
    # Further ones must not keep it from ever being empty.
    assert started(dispatch, ticket("later"), bad) == {}
    for one in others:
        dispatch.ended(one)
    assert started(dispatch) == {"bad": "a"}
    dispatch.ended(bad)
    assert started(dispatch) == {"later": "a"}


def test_a_home_that_is_gone_is_replaced() -> None:
    dispatch = state(a=BOTH)
    one = ticket("g", "gpu", near="t")
    assert started(dispatch, one) == {"g": "a"}
    assert dispatch.update_workers({"b": BOTH}) == [one]
    assert dispatch.died(one) is None and started(dispatch) == {"g": "b"} and dispatch.home == {"t": "b"}


def test_whatever_happens_all_that_do_not_kill_come_to_an_end() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        names = [f"w{i}" for i in range(chance.randint(1, 3))]
        dispatch = state(**{n: chance.choice((BOTH, CORES)) for n in names[1:]}, **{names[0]: BOTH})
        tickets = [
            ticket(f"t{i}", chance.choice(("cpu", "gpu")), chance.choice(("", "x", "y"))) for i in range(12)
        ]
        killers = set(chance.sample(tickets, 2))
        dispatch.queue += tickets
        ended: set[str] = set()
        given_up: list[TaskLost] = []
        for _ in range(500):
            dispatch.start()
            for name, worker in dispatch.workers.items():
                for needs in BOTH:
                    assert worker.free(needs) >= 0, (seed, name)
            if not dispatch.running():
                break
            one = chance.choice(dispatch.running())
            if one not in killers:
                dispatch.ended(one)
                ended.add(one.id)
                continue
            slots = {n: w.slots for n, w in dispatch.workers.items()}
            dead = one.at
            for lost in dispatch.update_workers({n: s for n, s in slots.items() if n != dead}):
                given_up += [why] if (why := dispatch.died(lost)) else []
            dispatch.update_workers({(f"{n}'" if n == dead else n): s for n, s in slots.items()})
        assert ended == {t.id for t in tickets if t not in killers}, seed
        assert len(given_up) == 2 and not dispatch.queue, seed
