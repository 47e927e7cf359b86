"""Low-priority background jobs on the resources that training leaves idle (DeepPool, section 5).

`manager` starts the job of this process, `process` controls it. `throttle` limits its cost to
training, and `idle_gaps` decides if it runs only while a step waits for other ranks.
"""
