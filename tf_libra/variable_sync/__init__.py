"""The variables of a training function: equal where they start, and where others train them."""
