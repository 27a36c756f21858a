"""nvcc's own account of its phases, as nvcc 13.0 writes it."""

from __future__ import annotations

from benchmarks.build_phases import phases, source

TABLE = """\
source file name , phase name , phase input files , phase output file , arch , tool, metric , unit
t.cu , gcc (preprocessing 4) , t.cu  , a.ii ,  , nvcc , 165.0 , ms
t.cu , cudafe++ , a.ii  , a.cpp , compute_90a , nvcc , 672.0 , ms
t.cu , g++ (preprocessing 1) , t.cu  , b.ii , compute_90a , nvcc , 197.0 , ms
t.cu , cicc ,  b.ii  , t.ptx , compute_90a , nvcc , 499.0 , ms
t.cu , ptxas , t.ptx  , t.cubin , sm_90a , nvcc , 39.0 , ms
t.cu , fatbinary , t.cubin  , t.fatbin ,  , nvcc , 9.0 , ms
t.cu , gcc (compiling) ,   , t.o , compute_90a , nvcc , 488.0 , ms
t.cu  , nvlink , t.o  , d.cubin , sm_90a , nvcc , 12.0 , ms
t.cu  , g++ (compiling) , link.stub  , d.o ,  , nvcc , 52.0 , ms
t.cu  , gcc (linking) , d.o t.o  , t.so ,  , nvcc , 120.0 , ms
 , nvcc (driver) ,  , t.so ,  , nvcc , 1.0 , ms
"""


def test_phases_add_up() -> None:
    found = {label: round(seconds, 3) for label, seconds in phases(TABLE).items()}
    assert found == {
        "preprocess": 0.362,
        "cudafe++": 0.672,
        "cicc": 0.499,
        "ptxas": 0.039,
        "host compile": 0.54,
        "link": 0.132,
        "other": 0.01,
    }


def test_a_schedule_replaces_the_example_s_own() -> None:
    _, schedule = source("warps pingpong  tile 64x128x64")
    assert "warps pingpong  tile 64x128x64" in schedule
