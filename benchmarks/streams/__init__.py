"""AIACC's comparison (section VIII) at the scale of one machine."""
