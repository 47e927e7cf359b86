"""Steps of a `MultiWorkerMirroredStrategy`, a module per topic; `multi_worker.py` runs them."""
