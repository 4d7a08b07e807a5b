"""Everything that knows phoonnx: the voice, the engine, the catalogue and their registration."""
