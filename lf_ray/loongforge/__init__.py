"""The upstream LoongForge trainer as a child process of each worker. No torch here.

Knobs are translated to its flags (`knob_map`), what it lacks is said before anything starts
(`start_check`), one rank is supervised (`child`) and read (`metrics_file`), and a visit sees all of
it as a session (`session`).
"""
