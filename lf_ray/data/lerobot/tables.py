"""Parquet files as numpy columns: the only reader of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lf_ray.data.files import require_file
from lf_ray.errors import DataError, four_parts


def columns_of(path: Path) -> list[str]:
    """Returns the column names of a parquet file.

    Raises:
        DataError: the file is missing, empty, an LFS pointer or no parquet file.
    """
    return list(_opened(path).schema_arrow.names)


def num_rows_of(path: Path) -> int:
    """Returns the number of rows of a parquet file."""
    return int(_opened(path).metadata.num_rows)


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Returns columns by name: [N] for scalars, [N, D] float32 for lists of numbers.

    Raises:
        DataError: the file can't be read, lacks a column, or a list column has ragged rows.
    """
    table = _table(path, columns)
    return {name: _array(path, name, table.column(name)) for name in columns}


def read_objects(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Returns columns by name as lists of Python values.

    Raises:
        DataError: the file can't be read, or lacks a column.
    """
    table = _table(path, columns)
    return {name: table.column(name).to_pylist() for name in columns}


def _opened(path: Path) -> Any:
    require_file(path, "opening a parquet file")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _table(path: Path, columns: Sequence[str]) -> Any:
    file = _opened(path)
    missing = [name for name in columns if name not in file.schema_arrow.names]
    if missing:
        raise DataError(
            four_parts(
                "reading a parquet file",
                f"{path} must have the columns {', '.join(columns)}",
                f"a file without {', '.join(missing)} (it has "
                f"{', '.join(file.schema_arrow.names)})",
                "Export the data set again, or name the column that holds it in modality.json "
                "(original_key).",
            )
        )
    try:
        return file.read(columns=list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _array(path: Path, name: str, column: Any) -> NDArray[Any]:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
    if not (pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type)):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    num_rows = len(array)
    flat = array.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    if num_rows == 0 or flat.size % num_rows or not _is_even(array, flat.size // num_rows):
        raise DataError(
            four_parts(
                "reading a parquet file",
                f"each row of the column {name} in {path} must have the same length",
                f"{flat.size} values in {num_rows} rows",
                "Export the data set again.",
            )
        )
    return np.asarray(flat.reshape(num_rows, -1))


def _is_even(array: Any, width: int) -> bool:
    if pa.types.is_fixed_size_list(array.type):
        return not array.null_count
    offsets = array.offsets.to_numpy()
    return not array.null_count and bool(np.all(np.diff(offsets) == width))


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(
        four_parts(
            "opening a parquet file",
            f"{path} must be a whole parquet file",
            str(error).splitlines()[0],
            "Download or export it again.",
        )
    )
