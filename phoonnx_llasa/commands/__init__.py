"""The subcommands of phoonnx-llasa, one module each."""
