"""`./run bench`: our figures beside the machine's limits and beside others' programs, measured in one run.

  stats      samples, medians, ratios, bars and the rows that are written and shown
  noise      what else ran on the machine while a sample was taken
  machine    the limits: memory, multiply-adds, a bare socket (programs in bench/)
  opponents  llama.cpp's server, Redis and the requantised model
  ours       our managers and engines, and what a reply must say for its time to count
  engine, restore, mover, memory   the benches themselves, one table each
  report     writes the rows of a committed run into docs/performance.md

Everything alternates (A B A B), everything is warmed first, and only ratios of one run mean anything.
"""
