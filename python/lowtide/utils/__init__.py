"""What ported programs import from here."""

from .hooks import inspect_activation
from .torch_io_helper import (
    ORTModelInputOutputSchemaType,
    ORTModelInputOutputType,
    PrimitiveType,
    extract_data_and_schema,
    unflatten_data_using_schema,
)

__all__ = [
    "ORTModelInputOutputSchemaType",
    "ORTModelInputOutputType",
    "PrimitiveType",
    "extract_data_and_schema",
    "inspect_activation",
    "unflatten_data_using_schema",
]
