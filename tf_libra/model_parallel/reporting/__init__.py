"""Records, views, files and text of pipelines and bursts."""
