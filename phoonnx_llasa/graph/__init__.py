"""ONNX graphs read, checked, rewritten and compared; the only part that imports onnx."""
