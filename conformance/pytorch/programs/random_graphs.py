"""The random program "graphs" that record_on_gpu/record.py records, with one seed per step."""

from .random_programs import starter

LIMITED = True
start = starter("graphs")
