"""How TensorFlow, Horovod and the engines are driven. No other room knows that."""
