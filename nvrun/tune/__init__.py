"""`nvrun tune`: a search over NCCL's settings for the message sizes of a job.

facts -> space -> search(space, measure) -> Outcome -> preset file, by the hardware's fingerprint
"""
