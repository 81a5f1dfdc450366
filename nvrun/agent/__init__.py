"""Code that runs on the hosts: standard library only, Python >= 3.9, imports nothing else of nvrun.

It is never installed there: `nvrun.fleet.bundle` sends these files over the connection, `boot` imports them from
memory.
"""
