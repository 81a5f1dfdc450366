"""Tests between hosts: who tries what with whom (`schedule`), and the conversations with the agents. What comes of them
is judged by `nvrun.checks.connections`, `shared` and `collectives`."""
