"""Rules over logs, exits and facts -> findings, the likely cause first.

Pure: lines in, `model.Finding`s out. `scan` reads one source, `judge` puts sources together, `page` prints.
"""
