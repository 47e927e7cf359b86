"""Reports of pipelines and bursts: records, views, files and text."""
