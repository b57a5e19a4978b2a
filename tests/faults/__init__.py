"""Faults: everything that may go wrong around a tick, tried with random seeds.

Each kind of fault is one function `(random, workspace)` in a module of its own subject, registered by `kind`. The suite tries
every kind with a few fixed seeds (`test_faults.py`); `make torture SECONDS=…` tries them with fresh ones for as long as one
likes (`__main__.py`). What must hold afterwards, whatever was tried, is in `invariants.py`.
"""
