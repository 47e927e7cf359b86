"""AIACC's search of a setting in steps that train: a bandit over searchers (section VI)."""
