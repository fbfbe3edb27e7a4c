"""Compares onnx/src/proto.rs with the descriptors of the installed package onnx: the number, type and label of each field.

    python tests/onnx/proto.py
"""
import pathlib
import re

import onnx
from google.protobuf.descriptor import FieldDescriptor as Field

SOURCE = pathlib.Path(__file__).resolve().parents[2] / "onnx/src/proto.rs"
NESTED = {
    "TensorTypeProto": onnx.TypeProto.Tensor,
    "DimensionProto": onnx.TensorShapeProto.Dimension,
}
TYPES = {
    "int64": (Field.TYPE_INT64,),
    "int32": (Field.TYPE_INT32, Field.TYPE_ENUM),
    "string": (Field.TYPE_STRING,),
    "float": (Field.TYPE_FLOAT,),
    "bytes": (Field.TYPE_BYTES,),
    "message": (Field.TYPE_MESSAGE,),
}


def main():
    text, fields = SOURCE.read_text(), 0
    for name, body in re.findall(r"pub struct (\w+) \{(.*?)\n\}", text, re.DOTALL):
        descriptor = NESTED.get(name, getattr(onnx, name, None)).DESCRIPTOR
        for attributes, field in re.findall(r"#\[prost\((.*?)\)\]\s*pub (?:r#)?(\w+):", body, re.DOTALL):
            found = descriptor.fields_by_name[field]
            kind, label = re.match(r'(\w+)(?: = "vec")?, (\w+)', attributes).groups()
            number = int(re.search(r'tag = "(\d+)"', attributes).group(1))
            assert found.number == number, (name, field)
            assert found.type in TYPES[kind], (name, field)
            assert found.is_repeated == (label == "repeated"), (name, field)
            fields += 1
    for module, enum in (("data_type", onnx.TensorProto.DataType), ("attribute_type", onnx.AttributeProto.AttributeType)):
        body = re.search(rf"pub mod {module} \{{(.*?)\n\}}", text, re.DOTALL).group(1)
        for constant, number in re.findall(r"pub const (\w+): i32 = (\d+);", body):
            assert enum.Value(constant) == int(number), (module, constant)
            fields += 1
    assert fields > 40
    print(f"{fields} fields and constants agree with onnx {onnx.__version__}")


if __name__ == "__main__":
    main()
