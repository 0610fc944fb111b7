"""Validation rules of a structural schema (`x-kubernetes-validations`), run by Google's own implementation of CEL.

The API server compiles a rule against the schema's types: a misspelt field or a comparison of a number with a text is
refused with the definition. So is it here, since `self` is a message with the schema's fields. What Kubernetes adds to the
language (its libraries for lists, quantities, URLs and so on) is not there: a rule that uses one does not compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
TYPES = {"string": FIELD.TYPE_STRING, "integer": FIELD.TYPE_INT64, "number": FIELD.TYPE_DOUBLE, "boolean": FIELD.TYPE_BOOL}


class Rule:
    """A rule on an object of scalar fields, compiled. Raises RuntimeError: it is not right by those fields' types."""

    def __init__(self, rule: str, schema: Mapping[str, Any]) -> None:
        file = descriptor_pb2.FileDescriptorProto(name="schema.proto", package="schema", syntax="proto2")  # whose fields may be absent
        message = file.message_type.add(name="Self")
        for number, (name, each) in enumerate(schema["properties"].items(), 1):
            message.field.add(name=name, number=number, type=TYPES[each["type"]], label=FIELD.LABEL_OPTIONAL)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)  # type: ignore[no-untyped-call]
        self._message = message_factory.GetMessageClass(pool.FindMessageTypeByName("schema.Self"))  # type: ignore[no-untyped-call]
        self._compiled = cel.NewEnv(pool, variables={"self": cel.Type("schema.Self")}).compile(rule)

    def allows(self, it: Mapping[str, Any]) -> bool:
        result = self._compiled.eval(data={"self": self._message(**it)}).value()
        assert isinstance(result, bool), result
        return result
