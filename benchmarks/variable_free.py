# SPDX-License-Identifier: Apache-2.0
"""Turns a traced function that changes variables into one that returns their values.

TensorFlow lowers a function to XLA for a device that it does not have only if there are
no variables in it: here they become arguments, and their new values results.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

from electra_tf.errors import UserError

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_ADDITIONS = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}


def without_variables(
    traced, variables: Sequence[tf.Variable]
) -> tf.types.experimental.PolymorphicFunction:
    """A function of (variables, inputs of `traced`): (new values, results of `traced`).

    Args:
      traced: a concrete function.
      variables: all that it uses, and any more.

    Raises `UserError` for what cannot be lowered so.
    """
    writer = _Writer(variables)
    known = {}
    for outer, inner in traced.graph.captures:
        if outer.dtype == tf.resource:
            known[inner.name] = writer.variable_of(outer)
        else:
            known[inner.name] = writer.constant(outer, inner.op.name)
    captured = {inner.name for _, inner in traced.graph.captures}
    inputs = [t for t in traced.graph.inputs if t.name not in captured]
    known |= {tensor.name: tensor.name for tensor in inputs}
    arguments = [*writer.current, *(tensor.name for tensor in inputs)]
    results = writer.copy(traced.graph, known, "")
    writer.graph.library.CopyFrom(traced.graph.as_graph_def().library)
    names = [*writer.current, *results]
    used = {name for node in writer.graph.node for name in node.input}
    specs = [tf.TensorSpec(v.shape, v.dtype) for v in variables]
    specs += [tf.TensorSpec(t.shape, t.dtype) for t in inputs]

    @tf.function(jit_compile=True, autograph=False, input_signature=specs)
    def function(*tensors):
        given = dict(zip(arguments, tensors, strict=True))
        read = {name: tensor for name, tensor in given.items() if name in used}
        made = [name for name in names if name not in given]
        found = tf.graph_util.import_graph_def(writer.graph, read, made, name="")
        given |= dict(zip(made, found, strict=True))
        return [given[name] for name in names]

    return function


class _Variable(int):
    """The number of a variable, where a tensor of its resource stood."""


class _Writer:
    """Writes the new graph; `current` names what holds each variable's value.

    What is put in place of an input needs no node of its own.
    """

    def __init__(self, variables: Sequence[tf.Variable]):
        self.graph = tf.compat.v1.GraphDef()
        self.graph.versions.producer = tf.version.GRAPH_DEF_VERSION
        self._numbers = {id(v.handle): _Variable(i) for i, v in enumerate(variables)}
        self._dtypes = [v.dtype for v in variables]
        self.current = [f"variable_{i}:0" for i in range(len(variables))]

    def variable_of(self, handle: tf.Tensor) -> _Variable:
        if id(handle) not in self._numbers:
            raise UserError(
                f"the step uses a variable that is not in its state: {handle}"
            )
        return self._numbers[id(handle)]

    def constant(self, value: tf.Tensor, name: str) -> str:
        node = self._node(name, "Const", [], dtype=value.dtype)
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value))
        return f"{name}:0"

    def copy(self, graph, known: dict, prefix: str) -> list:
        """Writes the operations of `graph`, in its order, which is the program's.

        Args:
          known: name of an input of `graph` -> its name here, or a _Variable.

        Returns: what its outputs are here.
        """
        for op in graph.get_operations():
            if op.type == "NoOp" or (op.outputs and op.outputs[0].name in known):
                continue
            inputs = [known[tensor.name] for tensor in op.inputs]
            if op.type == "EnsureShape":  # XLA would take the size for one that varies
                results = inputs
            elif any(isinstance(found, _Variable) for found in inputs):
                results = self._access(op, inputs, prefix + op.name)
            else:
                results = self._copy(op, inputs, prefix + op.name)
            names = [tensor.name for tensor in op.outputs]
            known.update(zip(names, results, strict=False))
        return [known[tensor.name] for tensor in graph.outputs]

    def _copy(self, op, inputs: list[str], name: str) -> list[str]:
        node = self.graph.node.add()
        node.CopyFrom(op.node_def)
        node.attr.pop("_class", None)
        node.name = name
        node.input[:] = inputs  # without the order of side effects
        return [f"{name}:{i}" for i in range(len(op.outputs))]

    def _access(self, op, inputs: list, name: str) -> list:
        """Writes what an operation on variables does; returns its outputs."""
        if op.type in _CALLS:
            graph = op.graph._get_function(op.get_attr("f").name)
            body = function_def_to_graph(graph.cached_definition)
            given = {t.name: v for t, v in zip(body.inputs, inputs, strict=True)}
            return self.copy(body, given, f"{name}/")
        variable, *values = inputs
        if not isinstance(variable, _Variable):
            raise self._refused(op)
        dtype = self._dtypes[variable]
        if op.type == "Identity":
            return [variable]
        if op.type == "ReadVariableOp":
            return [self.current[variable]]
        if op.type == "AssignVariableOp":
            self.current[variable] = values[0]
            return []
        if op.type in _ADDITIONS:
            operands = [self.current[variable], values[0]]
            self._node(name, _ADDITIONS[op.type], operands, T=dtype)
            self.current[variable] = f"{name}:0"
            return []
        if op.type == "ResourceGather":
            axis = self.constant(tf.constant(0), f"{name}/axis0")
            operands = [self.current[variable], values[0], axis]
            types = {"Tindices": op.inputs[1].dtype, "Taxis": tf.int32}
            self._node(name, "GatherV2", operands, Tparams=dtype, **types)
            return [f"{name}:0"]
        raise self._refused(op)

    @staticmethod
    def _refused(op) -> UserError:
        text = f"{op.type} of a variable cannot be compiled elsewhere: {op.name}"
        return UserError(text)

    def _node(self, name: str, op: str, inputs: list[str], **types):
        node = self.graph.node.add(name=name, op=op, input=inputs)
        for key, dtype in types.items():
            node.attr[key].type = tf.as_dtype(dtype).as_datatype_enum
        return node
