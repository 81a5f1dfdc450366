"""A job whose ranks write nothing: do they move, and if not, whom do they wait for?

`watch` asks the hosts (nvrun.agent.silence, nvrun.agent.stacks), `judge` says what their answers mean.
"""
