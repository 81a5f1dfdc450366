"""`nvrun bench`: collectives timed on a planned job, against what the hardware could do at most.

schedule -> session (a job whose program is worker.py) -> model.Record -> compare / limit -> show
"""
