"""What carries gradients and messages between ranks: lanes, Horovod."""
