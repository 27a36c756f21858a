"""Lanes and the workspace: no two blocks that may be alive at once share a byte, whatever the stages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ucutlass.pipeline.memory import ALIGNMENT, Allocation, WorkspaceLayout, aligned, assign_offsets
from ucutlass.pipeline.streams import StreamAssignment, assign_streams


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[frozenset[int]], list[bool]]:
    """What each step needs, of up to 12, and which must run on the caller's stream."""
    count = draw(st.integers(1, 12))
    after = [
        frozenset(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else frozenset()
        for i in range(count)
    ]
    return after, draw(st.lists(st.booleans(), min_size=count, max_size=count))


@given(graphs(), st.integers(1, 4))
def test_every_need_is_met_by_stream_order_and_events(
    graph: tuple[list[frozenset[int]], list[bool]], most: int
) -> None:
    after, home = graph
    stream_assignment = assign_streams(after, home, most)
    assert stream_assignment.count <= most
    ended = _executed(stream_assignment)
    for step, needs in enumerate(after):
        assert needs <= ended[step]
        assert stream_assignment.before[step] <= ended[step], (
            "before claims more than streams and events enforce"
        )
    assert all(stream_assignment.slots[i].stream == 0 for i, at_home in enumerate(home) if at_home)


def _executed(made: StreamAssignment) -> list[frozenset[int]]:
    """What has ended when each step begins, by stream order and recorded events alone."""
    ended: list[frozenset[int]] = []
    tail: dict[int, frozenset[int]] = {}
    for step, turn in enumerate(made.slots):
        known = tail.get(turn.stream, frozenset())
        if turn.stream and turn.stream not in tail:
            assert turn.forks or turn.waits, "a side stream that nothing orders behind the call's inputs"
        for wait in turn.waits:
            assert made.slots[wait].records and wait < step
            known |= ended[wait] | {wait}
        ended.append(known)
        tail[turn.stream] = known | {step}
    joined = tail.get(0, frozenset()).union(*(tail[stream] for stream in made.joins))
    assert joined == frozenset(range(len(made.slots))), "the call ends before a step does"
    return ended


@given(graphs(), st.integers(1, 4), st.data())
def test_no_two_live_blocks_share_a_byte(
    graph: tuple[list[frozenset[int]], list[bool]], most: int, data: st.DataObject
) -> None:
    after, home = graph
    turns = assign_streams(after, home, most)
    blocks = []
    for step in range(len(after)):
        readers = {i for i, needs in enumerate(after) if step in needs}
        size = data.draw(st.integers(0, 2000))
        blocks.append(Allocation(f"h{step}", size, step, frozenset({step, *readers})))
        blocks.append(Allocation(f"w{step}", data.draw(st.integers(0, 600)), step, frozenset({step})))
    workspace_layout = assign_offsets(blocks, turns.before)
    ended = _executed(turns)
    for block in blocks:
        if not block.bytes:
            assert block.name not in workspace_layout.offsets
            continue
        start = workspace_layout.offsets[block.name]
        assert start % ALIGNMENT == 0 and start + block.bytes <= workspace_layout.bytes
    real = [b for b in blocks if b.bytes]
    for i, a in enumerate(real):
        for b in real[i + 1 :]:
            apart = a.uses <= ended[b.first_step] or b.uses <= ended[a.first_step]
            assert apart or _disjoint(workspace_layout, a, b), (a, b)
    assert workspace_layout.bytes <= workspace_layout.unshared_bytes


def _disjoint(made: WorkspaceLayout, a: Allocation, b: Allocation) -> bool:
    x, y = made.offsets[a.name], made.offsets[b.name]
    return x + a.bytes <= y or y + b.bytes <= x


def test_a_chain_takes_two_of_its_blocks() -> None:
    after = [frozenset[int](), *(frozenset({i}) for i in range(9))]
    turns = assign_streams(after, [False] * 10)
    assert turns.count == 1
    blocks = [Allocation(f"h{i}", 1000, i, frozenset({i, i + 1})) for i in range(9)]
    assert assign_offsets(blocks, turns.before).bytes == 2 * aligned(1000)


def test_branches_may_not_share_what_a_chain_may() -> None:
    """Two chains of two stages: in one stream the second reuses what the first left, in two it must not."""
    after = [frozenset[int](), frozenset({0}), frozenset[int](), frozenset({2})]
    blocks = [Allocation("a", 512, 0, frozenset({0, 1})), Allocation("b", 512, 2, frozenset({2, 3}))]
    assert assign_offsets(blocks, assign_streams(after, [False] * 4, 1).before).bytes == 512
    assert assign_offsets(blocks, assign_streams(after, [False] * 4, 2).before).bytes == 1024


def test_blocks_take_the_tightest_gap() -> None:
    """A block of 256 goes into the gap of 256, not into the one of 512 before it."""
    before = [frozenset[int](), frozenset({0}), frozenset({0, 1}), frozenset({0, 1, 2})]
    blocks = [
        Allocation("big", 2048, 0, frozenset({0, 3})),
        Allocation("first", 512, 0, frozenset({0})),
        Allocation("second", 512, 0, frozenset({0, 3})),
        Allocation("third", 256, 0, frozenset({0, 1})),
        Allocation("fourth", 256, 0, frozenset({0, 3})),
        Allocation("late", 256, 2, frozenset({2, 3})),
    ]
    workspace_layout = assign_offsets(blocks, before)
    assert workspace_layout.offsets["late"] in (
        workspace_layout.offsets["third"],
        workspace_layout.offsets["first"],
    )
    assert workspace_layout.bytes == 2048 + 512 + 512 + 256 + 256
