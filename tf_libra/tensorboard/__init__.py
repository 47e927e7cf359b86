"""What a training run shows in TensorBoard: records, their writer, the plugin that draws them."""
