"""The four searches: what each takes from its paper, and what holds of all of them."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.optimise.trees import AGAIN, BAD, CAUGHT, NOT, OFF, tree_of, us
from ucutlass.agent.outcome import Outcome
from ucutlass.agent.search import SEARCHES, Selection, TimeScale, epsilon, flat, mantis, mcts
from ucutlass.agent.search.selection import broken, reward, usable
from ucutlass.agent.tree import ROOT, CandidateTree

NO_SCALE = TimeScale()
OUTCOMES = (us(10), us(20), us(5), BAD, NOT, OFF, CAUGHT, AGAIN)


class Loaded(random.Random):
    """Chance whose next `random()` is known."""

    def __init__(self, first: float, seed: int = 0) -> None:
        super().__init__(seed)
        self.first: float | None = first

    def random(self) -> float:
        found, self.first = self.first, None
        return super().random() if found is None else found


def picks(search: Any, tree: CandidateTree, scale: TimeScale = NO_SCALE, tries: int = 200) -> Counter[int]:
    """How often each node is picked, over as many seeds."""
    found = [search(tree, scale, random.Random(seed)) for seed in range(tries)]
    return Counter(p.parent for p in found if p is not None)


# --- all of them -----------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> CandidateTree:
    """As sessions make them: what may have no children has none."""
    candidate_tree = CandidateTree()
    for at in range(draw(st.integers(1, 25))):
        open_ = [n.id for n in candidate_tree.nodes if usable(n)]
        if at and not open_:
            break
        parent = draw(st.sampled_from(open_)) if at else None
        candidate_tree.add(parent, str(at), str(at), "", draw(st.sampled_from(OUTCOMES)))
    candidate_tree.spent.update(draw(st.sets(st.integers(0, len(candidate_tree) - 1))))
    return candidate_tree


DEAD_END = tree_of((None, us(10)), (0, us(5)), (1, CAUGHT), (1, CAUGHT), (1, CAUGHT), spent=[0])
"""Every node is closed by a cap, and one of them not exhausted."""


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=300, deadline=None)
@example(tree=DEAD_END, seed=0, bound=0.0)
@given(tree=trees(), seed=st.integers(0, 9), bound=st.sampled_from([0.0, 4e-6]))
def test_a_pick_is_a_node_that_may_have_children(
    name: Any, tree: CandidateTree, seed: int, bound: float
) -> None:
    left = {n.id for n in tree.nodes if usable(n) and n.id not in tree.spent}
    found = SEARCHES[name].search(tree, TimeScale(bound), random.Random(seed))
    if found is None:
        assert not left
        return
    assert found.parent in left
    assert found.repair == broken(tree[found.parent])
    assert found == SEARCHES[name].search(tree, TimeScale(bound), random.Random(seed)), "chance is the seed's"


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_has_no_memory_and_changes_nothing(name: Any) -> None:
    tree = tree_of((None, us(10)), (0, us(9)), (0, BAD), (1, us(8)))
    before = list(tree.nodes), set(tree.spent)
    SEARCHES[name].search(tree, NO_SCALE, random.Random(0))
    assert (tree.nodes, tree.spent) == before


# --- flat ------------------------------------------------------------------------


def test_flat_goes_on_from_the_fastest() -> None:
    tree = tree_of((None, us(10)), (0, us(7)), (1, us(9)))
    assert flat.pick(tree, NO_SCALE, random.Random(0)) == Selection(1)
    tree.spent.add(1)
    assert flat.pick(tree, NO_SCALE, random.Random(0)) == Selection(2)


def test_flat_mends_the_last_while_nothing_is_right() -> None:
    tree = tree_of((None, BAD), (0, OFF), (1, AGAIN))
    assert flat.pick(tree, NO_SCALE, random.Random(0)) == Selection(1, repair=True)


# --- STARK -----------------------------------------------------------------------


def test_the_root_has_few_children() -> None:
    """Root throttling: the root is the fastest, and closed by its fifth child."""
    rows = [(None, us(10)), *((0, us(20 + i)) for i in range(epsilon.ROOT_CHILDREN))]
    assert epsilon.pick(tree_of(*rows[:-1]), NO_SCALE, Loaded(0.99)) == Selection(ROOT)
    assert ROOT not in picks(epsilon.pick, tree_of(*rows))


def test_a_branch_whose_children_all_failed_is_closed() -> None:
    """Dead-branch pruning: node 1 is the fastest and has three failures."""
    dead = tree_of((None, us(10)), (0, us(5)), *(((1, BAD),) * epsilon.CHILDREN))
    assert 1 not in picks(epsilon.pick, dead)
    alive = tree_of((None, us(10)), (0, us(5)), *(((1, BAD),) * epsilon.CHILDREN), (1, us(6)))
    assert epsilon.pick(alive, NO_SCALE, Loaded(0.99)) == Selection(1), "one of them is right"


def test_exploration_takes_open_leaves_only() -> None:
    """Leaf bias: by chance a leaf, each as likely; never an inner node that is not the fastest."""
    tree = tree_of((None, us(10)), (0, us(5)), (0, us(8)), (2, us(9)), (2, BAD), (1, CAUGHT))
    selections = [epsilon.pick(tree, NO_SCALE, Loaded(epsilon.EPSILON - 0.01, seed)) for seed in range(400)]
    counts = Counter(p.parent for p in selections if p is not None)
    assert set(counts) == {3, 4}, "0 and 2 are inner, 1 has a child, 5 was rejected"
    assert min(counts.values()) > 150
    assert next(p for p in selections if p and p.parent == 4).repair


def test_how_often_it_explores() -> None:
    """A high epsilon: between 0.3 and 0.4, as published."""
    tree = tree_of((None, us(10)), (0, us(5)), (1, us(8)))
    assert epsilon.pick(tree, NO_SCALE, Loaded(epsilon.EPSILON - 0.01)) == Selection(2)
    assert epsilon.pick(tree, NO_SCALE, Loaded(epsilon.EPSILON + 0.01)) == Selection(1)
    assert 0.3 <= epsilon.EPSILON <= 0.4
    assert picks(epsilon.pick, tree, tries=2000)[2] / 2000 == pytest.approx(epsilon.EPSILON, abs=0.04)


def test_caps_never_end_a_search() -> None:
    """Where throttling and pruning close every node, the fastest goes on: the purse decides."""
    tree = tree_of((None, us(10)), *(((0, CAUGHT),) * epsilon.ROOT_CHILDREN))
    assert epsilon.pick(tree, NO_SCALE, random.Random(0)) == Selection(ROOT)


# --- KernelPro -------------------------------------------------------------------


def test_the_reward_is_a_logarithm() -> None:
    """From 4 to 2 times the bound counts as from 2 to 1."""
    tree = tree_of((None, us(4)), (0, us(2)), (0, us(1)), (0, us(0.5)), (0, us(8)), (0, BAD))
    actual = [reward(n, 4e-6, TimeScale(1e-6)) for n in tree.nodes]
    assert actual == pytest.approx([0.0, 0.5, 1.0, 1.0, 0.0, 0.0])
    assert reward(tree[1], 20e-6, NO_SCALE) == pytest.approx(1.0), "tenfold, where no bound is known"
    assert reward(tree[1], 4e-6, NO_SCALE) == pytest.approx(math.log10(2))
    assert reward(tree[1], None, TimeScale(1e-6)) == 0.0


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants that make the arithmetic of widening plain."""
    for name, value in {"EXPLORE": 0.3, "WIDTH": 1.0, "POWER": 0.5, "FAVOUR": 2.0, "DEAD": 3}.items():
        monkeypatch.setattr(mcts, name, value)


def grown(outcome: Outcome, attempts: int) -> CandidateTree:
    """A tree that the search grew, every child with the same outcome."""
    tree = tree_of((None, us(10)))
    for at in range(attempts):
        selection = mcts.pick(tree, NO_SCALE, random.Random(at))
        assert selection is not None
        tree.add(selection.parent, str(at + 1), "", "", outcome)
    return tree


@pytest.mark.usefixtures("wide")
def test_a_node_widens_with_its_visits() -> None:
    """Progressive widening: no more children than the root of the visits, and as many as that allows."""
    tree = grown(us(20), 60)
    visits = Counter(above.id for n in tree.nodes for above in tree.path(n.id))
    for node in tree.nodes:
        children = len(tree.children(node.id))
        # The root counts as improved: it has no parent to be slower than.
        most = math.sqrt(visits[node.id]) * (2 if node.id == ROOT else 1)
        assert children <= most + 1
    assert len(tree.children(ROOT)) >= 10


@pytest.mark.usefixtures("wide")
def test_a_node_that_improved_may_have_more_children() -> None:
    """Asymmetric branching: of two nodes with four visits the faster one has room for a fourth child."""

    def branch(first: float) -> CandidateTree:
        return tree_of((None, us(10)), (0, us(first)), *(((1, us(30)),) * 3), spent=[0, 2, 3, 4])

    counts = mcts._counts(branch(9), 10e-6, NO_SCALE)
    assert counts[1].visits == 4
    assert mcts._most(branch(9), branch(9)[1], counts) == 4.0
    assert mcts._most(branch(11), branch(11)[1], counts) == 2.0


@pytest.mark.usefixtures("wide")
def test_a_node_whose_children_all_failed_is_a_dead_end() -> None:
    failed = ((1, CAUGHT), (1, AGAIN), (1, BAD))
    dead = tree_of((None, us(10)), (0, us(2)), *failed, (0, us(9)), spent=[0, 4])
    assert set(picks(mcts.pick, dead)) == {5}, "1 is the best, and a dead end"
    alive = tree_of((None, us(10)), (0, us(2)), *failed, (0, us(9)), (1, us(3)), spent=[0, 4])
    assert set(picks(mcts.pick, alive)) <= {1, 6}, "one of its children is right"


@pytest.mark.usefixtures("wide")
def test_the_root_is_no_dead_end() -> None:
    """Before the first success nothing is closed for good."""
    tree = tree_of((None, BAD), *(((0, CAUGHT),) * 40))
    assert mcts.pick(tree, NO_SCALE, random.Random(0)) == Selection(ROOT, repair=True)


@pytest.mark.usefixtures("wide")
def test_the_better_branch_is_walked_down() -> None:
    tree = tree_of((None, us(10)), (0, us(2)), (0, us(9)), spent=[0])
    assert set(picks(mcts.pick, tree, TimeScale(1e-6))) == {1}


@pytest.mark.usefixtures("wide")
def test_a_branch_that_was_visited_often_gives_way() -> None:
    """UCT: the same reward, one branch with many visits."""
    rows: list[tuple[int | None, Outcome]] = [(None, us(10)), (0, us(5)), (0, us(5))]
    rows += [(1, us(30))] * 6
    assert set(picks(mcts.pick, tree_of(*rows, spent=[0]))) == {2}


# --- MANTIS ----------------------------------------------------------------------


def walk(outcomes: list[Outcome]) -> list[Selection]:
    """The picks of a whole search, whose attempts end so."""
    tree = tree_of((None, us(10)))
    selections: list[Selection] = []
    for at, outcome in enumerate(outcomes):
        picked = mantis.pick(tree, NO_SCALE, random.Random(0))
        assert picked is not None
        selections.append(picked)
        tree.add(picked.parent, str(at + 1), "", "", outcome)
    return selections


def test_five_iterations_of_two_hypotheses_with_four_attempts() -> None:
    selections = walk([us(11)] * mantis.ITERATIONS * mantis.HYPOTHESES * mantis.ATTEMPTS)
    assert len(selections) == 40
    assert [p.hypothesis for p in selections] == [at // 4 for at in range(40)]


def test_both_hypotheses_start_where_their_iteration_did() -> None:
    """Attempt 2 is faster than the root, yet the second hypothesis starts from the root; the second
    iteration starts from the fastest of all."""
    selections = walk([us(9), us(5), us(8), us(8), us(7), us(7), us(7), us(7), us(6)])
    assert selections[0].parent == selections[4].parent == ROOT
    assert selections[8].parent == 2


def test_a_hypothesis_goes_on_from_its_own_best() -> None:
    selections = walk([us(12), us(11), us(13), us(14), us(15), us(14)])
    assert [p.parent for p in selections] == [0, 1, 2, 2, 0, 5]


def test_a_hypothesis_mends_its_last_where_none_is_right() -> None:
    selections = walk([BAD, OFF, us(12), us(11)])
    assert selections[1:3] == [Selection(1, True, 0), Selection(2, True, 0)]
    assert selections[3] == Selection(3, False, 0)


def test_what_the_audit_rejects_is_nobodys_ancestor() -> None:
    selections = walk([CAUGHT, CAUGHT, AGAIN, CAUGHT, us(9)])
    assert {p.parent for p in selections} == {ROOT}
