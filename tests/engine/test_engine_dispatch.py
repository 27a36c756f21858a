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
    made = Dispatch()
    assert made.update_workers(workers) == []
    return made


def started(made: Dispatch, *tickets: Ticket) -> dict[str, str | None]:
    made.queue += tickets
    return {t.id: t.at for t in made.start()}


def test_a_worker_gets_no_more_than_it_runs() -> None:
    made = state(a=BOTH)
    tickets = [ticket(f"c{i}") for i in range(4)] + [ticket("g0", "gpu"), ticket("g1", "gpu")]
    assert started(made, *tickets) == {"c0": "a", "c1": "a", "g0": "a"}
    made.ended(tickets[0])
    assert started(made) == {"c2": "a"}
    made.ended(tickets[4])
    assert started(made) == {"g1": "a"}


def test_builds_go_where_cores_are_free_and_launches_where_gpus_are() -> None:
    made = state(a=BOTH, farm=CORES)
    assert set(started(made, *[ticket(f"c{i}") for i in range(7)]).values()) == {"a", "farm"}
    assert made.total("cpu") == 6 and len(made.running()) == 6
    assert started(made, ticket("g", "gpu"), ticket("h", "gpu")) == {"g": "a"}


def test_a_token_stays_on_its_gpu_and_tokens_spread() -> None:
    made = state(a=BOTH, b=BOTH)
    first = started(made, *[ticket(f"g{i}", "gpu", near=f"t{i}") for i in range(2)])
    assert set(first.values()) == {"a", "b"}
    # Its own GPU is taken: it waits for that one, though nothing else is between.
    again = ticket("again", "gpu", near="t0")
    made.ended(next(t for t in made.running() if t.id == "g1"))
    assert started(made, again) == {}
    made.ended(next(t for t in made.running() if t.id == "g0"))
    assert started(made) == {"again": first["g0"]}


def test_builds_are_near_their_gpu_while_cores_are_free_there() -> None:
    made = state(a=BOTH, b=BOTH)
    found = started(made, *[ticket(f"c{i}", near="t") for i in range(3)])
    assert [found[f"c{i}"] for i in range(2)] == [made.home["t"]] * 2 and found["c2"] != made.home["t"]


def test_who_dies_with_a_worker_is_run_alone_and_given_up_at_last() -> None:
    made = state(a=BOTH, b=BOTH)
    bad, good = ticket("bad", near="t"), ticket("good", near="t")
    first = started(made, bad, good)
    assert first["bad"] == first["good"]
    (dead,) = set(first.values())
    for life in range(1, LIVES):
        left = {name: BOTH for name in ("a", "b") if name != dead}
        for lost in made.update_workers(left):
            assert made.died(lost) is None
        made.update_workers({"a": BOTH, "b": BOTH})
        running = {t.id: t.at for t in made.start()} | {t.id: t.at for t in made.running()}
        assert running["bad"] != running.get("good"), "not alone"
        if good in made.running():
            made.ended(good)
        dead = running["bad"]
        assert len(bad.died) == life
    (lost,) = made.update_workers({name: BOTH for name in ("a", "b") if name != dead})
    why = made.died(lost)
    assert isinstance(why, TaskLost) and why.target == "m:bad" and len(why.workers) == LIVES
    assert not made.queue and not made.running() and len(good.died) == 1


def test_a_worker_is_emptied_for_who_must_be_alone() -> None:
    made = state(a=CORES)
    others = [ticket(f"c{i}") for i in range(3)]
    assert len(started(made, *others)) == 3
    bad = ticket("bad")
    bad.died.append("b")
    # Further ones must not keep it from ever being empty.
    assert started(made, ticket("later"), bad) == {}
    for one in others:
        made.ended(one)
    assert started(made) == {"bad": "a"}
    made.ended(bad)
    assert started(made) == {"later": "a"}


def test_a_home_that_is_gone_is_replaced() -> None:
    made = state(a=BOTH)
    one = ticket("g", "gpu", near="t")
    assert started(made, one) == {"g": "a"}
    assert made.update_workers({"b": BOTH}) == [one]
    assert made.died(one) is None and started(made) == {"g": "b"} and made.home == {"t": "b"}


def test_whatever_happens_all_that_do_not_kill_come_to_an_end() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        names = [f"w{i}" for i in range(chance.randint(1, 3))]
        made = state(**{n: chance.choice((BOTH, CORES)) for n in names[1:]}, **{names[0]: BOTH})
        tickets = [
            ticket(f"t{i}", chance.choice(("cpu", "gpu")), chance.choice(("", "x", "y"))) for i in range(12)
        ]
        killers = set(chance.sample(tickets, 2))
        made.queue += tickets
        ended: set[str] = set()
        given_up: list[TaskLost] = []
        for _ in range(500):
            made.start()
            for name, worker in made.workers.items():
                for needs in BOTH:
                    assert worker.free(needs) >= 0, (seed, name)
            if not made.running():
                break
            one = chance.choice(made.running())
            if one not in killers:
                made.ended(one)
                ended.add(one.id)
                continue
            slots = {n: w.slots for n, w in made.workers.items()}
            dead = one.at
            for lost in made.update_workers({n: s for n, s in slots.items() if n != dead}):
                given_up += [why] if (why := made.died(lost)) else []
            made.update_workers({(f"{n}'" if n == dead else n): s for n, s in slots.items()})
        assert ended == {t.id for t in tickets if t not in killers}, seed
        assert len(given_up) == 2 and not made.queue, seed
