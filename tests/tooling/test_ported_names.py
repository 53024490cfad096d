"""Names that documents of ORTModule show by path, in the form that programs write them."""

import importlib
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from lowtide.errors import InvalidArgument, UnsupportedData
from lowtide.ortmodule import ORTModule
from lowtide.utils import (
    ORTModelInputOutputSchemaType,
    ORTModelInputOutputType,
    PrimitiveType,
    extract_data_and_schema,
    unflatten_data_using_schema,
)

Pair = namedtuple("Pair", "left right")


@dataclass
class Batch:
    ids: torch.Tensor
    name: str


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one is other
    if isinstance(one, dict):
        return type(one) is type(other) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Batch):
        return type(one) is type(other) and same(vars(one), vars(other))
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_data_and_schema_are_the_data_again():
    a, b, c, d = (torch.ones(size) for size in (1, 2, 3, 4))
    data = [a, {"x": (b, None, "word"), "k": 2.5}, Pair(c, True), OrderedDict(z=[]), Batch(d, "train"), a]
    tensors, schema = extract_data_and_schema(data)
    assert all(map(same, tensors, [a, b, c, d, a])) and len(tensors) == 5
    assert schema[0].dtype == "torch.float32" and schema[0].shape_dims == 1 and schema[1]["k"] == 2.5
    assert same(unflatten_data_using_schema(tensors, schema), data)
    others = [tensor + 1 for tensor in tensors]
    assert same(unflatten_data_using_schema(others, schema)[1]["x"][0], others[1])
    assert schema == extract_data_and_schema(unflatten_data_using_schema(others, schema))[1]
    assert schema != extract_data_and_schema([a.double(), *data[1:]])[1]
    with pytest.raises(InvalidArgument, match="expected 5 tensors, as many as the schema has, found 4"):
        unflatten_data_using_schema(tensors[:4], schema)


def test_numbers_may_become_tensors():
    tensors, schema = extract_data_and_schema((3, {"flag": True, "rate": 0.5, "name": "x"}), constant_as_tensor=True)
    assert [(tensor.dtype, tensor.item()) for tensor in tensors] == [
        (torch.int64, 3),
        (torch.bool, True),
        (torch.float32, 0.5),
    ]
    other = extract_data_and_schema((4, {"flag": True, "rate": 0.25, "name": "x"}), constant_as_tensor=True)[1]
    unlike = extract_data_and_schema((3, {"flag": False, "rate": 0.5, "name": "x"}), constant_as_tensor=True)[1]
    assert schema == other != unlike, "the value of a bool decides"
    assert PrimitiveType.is_primitive_type(1.0) and not PrimitiveType.is_primitive_type("1.0")


def test_what_no_graph_takes_is_named():
    with pytest.raises(UnsupportedData, match="Unsupported flatten data type.*builtins.object"):
        extract_data_and_schema([object()])


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (
            "lowtide.utils.torch_io_helper",
            ["extract_data_and_schema", "unflatten_data_using_schema", "PrimitiveType", "ORTModelInputOutputType"],
        ),
        ("lowtide.utils.hooks._statistics_subscriber", ["StatisticsSubscriber"]),
        ("lowtide.utils.hooks.merge_activation_summary", []),
    ],
)
def test_modules_that_documents_link(path, names):
    module = importlib.import_module(path)
    assert all(hasattr(module, name) for name in names)
    hooks = importlib.import_module("lowtide.utils.hooks")
    assert getattr(module, "StatisticsSubscriber", hooks.StatisticsSubscriber) is hooks.StatisticsSubscriber


def test_types_of_annotations():
    def forward(x: ORTModelInputOutputType) -> ORTModelInputOutputSchemaType: ...

    assert torch.Tensor in ORTModelInputOutputType.__args__ and len(forward.__annotations__) == 2


def test_what_is_not_there_yet_says_so():
    module = importlib.import_module("lowtide.utils.hooks._zero_offload_subscriber")
    with pytest.raises(ImportError, match="steps of the plan gather parameters"):
        module.ZeROOffloadSubscriber  # noqa: B018


def test_the_processed_model_by_its_path():
    """As the description of the graph transition manager calls it."""
    model = torch.nn.Linear(3, 2)
    wrapped, x = ORTModule(model), torch.ones(4, 3)
    manager = wrapped._training_manager
    assert manager._graph_transition_manager._post_export_processed_model_info is None
    manager._graph_transition_manager.use_cache_or_reconstruct_post_processed_model((x,), {})
    inputs = manager._graph_transition_manager._post_export_processed_model_info.construct_inputs((x,), {}, True, "cpu")
    assert any(tensor is x for tensor in inputs)
    y = wrapped(x)
    info = manager._graph_transition_manager._post_export_processed_model_info
    assert info.restore_outputs([y]) is y and info.onnx_graph_input_names_user_defined == ["input"]
