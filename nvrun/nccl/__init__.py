"""NCCL's variables as a catalogue, their lint, and the reader of NCCL's own log."""
