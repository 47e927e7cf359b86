"""Reports of a run without TensorBoard: HTML, figures, Chrome traces."""
