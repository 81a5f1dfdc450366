"""Traces of torch.profiler -> where the time of a rank's steps went, and what to change.

    file ──► events ──► summary ──► advice
    stream   pure       pure        pure

A trace is read once, in pieces: what is held of it is 16 bytes for each stretch of work on a device, 16 for each
collective, and a count for everything else.
"""
