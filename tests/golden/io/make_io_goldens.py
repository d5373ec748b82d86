"""Makes tiny.safetensors and tiny.gguf: what the packages that own the formats write, for the readers' tests.

Run with tests/golden/requirements.txt installed. The values are in test_safetensors.cc and test_gguf.cc.
"""

import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent


def make_safetensors() -> None:
    """Four tensors, a scalar and an empty one among them, and metadata."""
    tensors = {
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.array([1.5, -2.0], dtype=np.float16),
        "scalar": np.array(7, dtype=np.int64),
        "empty": np.zeros((0, 4), dtype=np.uint8),
    }
    save_file(tensors, HERE / "tiny.safetensors", metadata={"format": "pt", "note": 'a "quoted" é'})


def make_gguf() -> None:
    """Every kind of metadata value; two float and two quantised tensors."""
    writer = gguf.GGUFWriter(HERE / "tiny.gguf", "llama")
    writer.add_uint8("test.u8", 200)
    writer.add_int8("test.i8", -3)
    writer.add_uint16("test.u16", 60000)
    writer.add_int16("test.i16", -300)
    writer.add_uint32("test.u32", 4000000000)
    writer.add_int32("test.i32", -70000)
    writer.add_uint64("test.u64", 2**63 + 1)
    writer.add_int64("test.i64", -(2**40))
    writer.add_float32("test.f32", 0.1)
    writer.add_float64("test.f64", 0.1)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "é")
    writer.add_array("test.strings", ["a", "bc", "\u0120d"])
    writer.add_array("test.integers", [1, -2, 3])
    writer.add_array("test.floats", [0.5, -1.5])
    rows = np.arange(64, dtype=np.float32).reshape(2, 32) / 8
    writer.add_tensor("f32", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("f16", np.array([[1.5, -2.0, 3.0]], dtype=np.float16))
    for name, kind in (("q8_0", gguf.GGMLQuantizationType.Q8_0), ("q5_0", gguf.GGMLQuantizationType.Q5_0)):
        writer.add_tensor(name, gguf.quants.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    make_safetensors()
    make_gguf()
