"""uCUTLASS: a compact kernel language compiled to CUTLASS C++."""
