"""Files of shapes: what they say, and where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ucutlass import frontend
from ucutlass.shapes import ShapeError
from ucutlass.tune.shapes_file import MOST, MOST_BYTES, ShapesFileError, WeightedShape, parse, read, split

PROGRAM = frontend.kernel(
    frontend.read_text(
        "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { require K % 8 == 0 return dot[K](x, w) }"
    )
)
FILE = Path("shapes.csv")


def test_shapes_weights_and_what_all_have_in_common() -> None:
    weighted_shapes = parse("\n M, weight ,N\n1,0.5,8\n\n64,2,8\n", FILE, PROGRAM, {"K": 16})
    assert weighted_shapes == (
        WeightedShape({"K": 16, "M": 1, "N": 8}, 0.5, 3),
        WeightedShape({"K": 16, "M": 64, "N": 8}, 2.0, 5),
    )
    assert parse("M,N,K\r\n1,8,16\r\n", FILE, PROGRAM)[0].weight == 1.0


def test_a_dimension_called_weight_is_a_dimension() -> None:
    text = "kernel k(x: f16[weight, K], w: f16[N, K]) -> f16[weight, N] { return dot[K](x, w) }"
    program = frontend.kernel(frontend.read_text(text))
    (found,) = parse("weight,N,K\n3,8,16\n", FILE, program)
    assert found == WeightedShape({"weight": 3, "N": 8, "K": 16}, 1.0, 2)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "there are no shapes"),
        ("\n\n", None, "there are no shapes"),
        ("M,N,K\n", None, "there are no shapes"),
        ("M,N,L\n1,1,8\n", 1, "'L' is no column: a header has some of M, K, N, weight"),
        ("1,8,16\n", 1, "'1' is no column"),
        ("M,N,K,M\n1,1,8,1\n", 1, "the column M is there 2 times"),
        ("M,N,K\n1,8,16\n1,8\n", 3, "there are 2 values for 3 columns"),
        ("M,N,K\n1,8,16,7\n", 2, "there are 4 values for 3 columns"),
        ("M,N\n1,8\n", 2, "the extent of K is missing"),
        ("M,N,K\n1,8,many\n", 2, "is not of the form"),
        ("M,N,K\n1,8,16.0\n", 2, "is not of the form"),
        ("M,N,K\n0,8,16\n", 2, "an extent is at least 1"),
        ("M,N,K\n1,8,-16\n", 2, "is not of the form"),
        ("M,N,K\n1,8,12\n", 2, "requirement 1 of k does not hold"),
        ("M,N,K,weight\n1,8,16,\n", 2, "the weight is ''; it is a number above 0"),
        ("M,N,K,weight\n1,8,16,0\n", 2, "it is a number above 0"),
        ("M,N,K,weight\n1,8,16,nan\n", 2, "it is a number above 0"),
        ("M,N,K,weight\n1,8,16,inf\n", 2, "it is a number above 0"),
        ("M,N,K\n1,8,16\n2,8,16\n1,8,16\n", 4, "stands in line 2 already"),
        ('M,N,K\n1,8,"16\n', 2, "this is no CSV"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, line: int | None, words: str) -> None:
    with pytest.raises(ShapesFileError) as caught:
        parse(text, FILE, PROGRAM)
    said = str(caught.value)
    assert said.startswith(f"shapes.csv:{line}: " if line else "shapes.csv: ") and words in said
    assert said.count("UC0601") == 1


def test_a_column_that_is_given_beside_the_file() -> None:
    with pytest.raises(ShapesFileError, match="K is a column here and given with -s"):
        parse("M,N,K\n1,8,16\n", FILE, PROGRAM, {"K": 16})


def test_at_most_so_many() -> None:
    lines = [f"{m},8,16" for m in range(1, MOST + 2)]
    assert len(parse("M,N,K\n" + "\n".join(lines[:MOST]), FILE, PROGRAM)) == MOST
    with pytest.raises(ShapesFileError, match=rf"csv:{MOST + 2}: a set has at most {MOST} shapes"):
        parse("M,N,K\n" + "\n".join(lines), FILE, PROGRAM)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "shapes.csv"
    with pytest.raises(ShapesFileError, match="no such file"):
        read(path, PROGRAM)
    path.write_bytes(b"\xef\xbb\xbfM,N\n1,8\n")
    assert read(path, PROGRAM, ["K=16"]) == (WeightedShape({"K": 16, "M": 1, "N": 8}, 1.0, 2),)
    path.write_bytes(b"M,N,K\n1,8,16\n\xff\n")
    with pytest.raises(ShapesFileError, match=r"csv:3: this is no UTF-8"):
        read(path, PROGRAM)
    path.write_bytes(b"M" * (MOST_BYTES + 1))
    with pytest.raises(ShapesFileError, match="at most"):
        read(path, PROGRAM)


def test_what_sizes_are_given() -> None:
    assert split(["M=1,N=2", "K=3"]) == (None, ("M=1,N=2", "K=3"))
    assert split(["K=3", "a/b.csv"]) == (Path("a/b.csv"), ("K=3",))
    with pytest.raises(ShapeError, match="one file of shapes"):
        split(["a.csv", "b.csv"])
