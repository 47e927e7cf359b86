"""AIACC's search of settings in training steps, by a bandit over searchers (section VI)."""
