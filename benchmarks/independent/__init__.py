"""A second simulator of engine fleets, which shares no code and few modelling choices with `ext_proc.sim.fleet`.

It drives the same picker, ledger, indexes and strategies that serve requests, so what both simulators say of a strategy
is a property of the strategy, not of a simulator.
"""
