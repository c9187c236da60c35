"""Hash a sequence of intervals as a tree, so that a few hashes prove that an interval is in it and overlaps no other.

A *node* covers places from `begin` to before `end`. A place is a name and a number, such as a stream and a time, and
places are ordered by the bytes of the name, then by the number. A leaf is an interval with the hash of its content. Two
neighbours have a parent: it covers from the beginning of the left one to the end of the right one, and its hash is the
SHA-256 of both nodes, each as the netstrings of its begin, its end and its hash. A node without a neighbour moves up
unchanged. The hash of the last node left is the *root*.

The *path* of a leaf lists the neighbours from the leaf up to the root. Anyone who knows the root can recompute it from
the leaf and the path; if no neighbour covers a place that the leaf covers, no other leaf does. The trees of Certificate
Transparency (RFC 6962) work the same way, but their nodes cover nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from windrow.columnar.arrow import from_numpy, one_batch
from windrow.model import canonical

NODE = pa.schema(
    [
        ("begin_name", pa.string()), ("begin", pa.int64()), ("end_name", pa.string()), ("end", pa.int64()),
        ("hash", pa.string()),
    ]
)  # fmt: skip
Step: TypeAlias = tuple[str, str, int, str, int, str]  # "left" or "right" of the node below, and the neighbour


@dataclass(frozen=True, slots=True)
class HashTree:
    """The nodes of a tree, level by level: the leaves in order, their parents, and finally the root."""

    levels: Sequence[pa.RecordBatch]

    @classmethod
    def of(cls, leaves: pa.Table) -> HashTree:
        """Return the tree over some leaves (`NODE`), which are in order and do not overlap; at least one."""
        levels = [one_batch(leaves.select(NODE.names).cast(NODE))]
        while levels[-1].num_rows > 1:
            levels.append(_parents(levels[-1]))
        return cls(levels)

    @property
    def root(self) -> str:
        """Return the hash over all leaves."""
        return str(self.levels[-1]["hash"][0])

    def path(self, leaf: int) -> list[Step]:
        """Return the neighbours from a leaf, by its number, up to the root."""
        steps, at = list[Step](), leaf
        for level in self.levels[:-1]:
            beside = at ^ 1
            if beside < level.num_rows:
                node: dict[str, Any] = level.slice(beside, 1).to_pylist()[0]
                steps.append(("left" if beside < at else "right", *(node[name] for name in NODE.names)))
            at //= 2
        return steps


def _parents(nodes: pa.RecordBatch) -> pa.RecordBatch:
    """Return the level above: the parent of each two neighbours, and the last node if it has no neighbour."""
    pairs = nodes.num_rows // 2
    left, right = (nodes.take(from_numpy(np.arange(first, 2 * pairs, 2))) for first in (0, 1))
    hashes = canonical.digests(canonical.fields([*left.columns, *right.columns]))
    parents = [left["begin_name"], left["begin"], right["end_name"], right["end"], hashes]
    whole = pa.Table.from_batches([pa.RecordBatch.from_arrays(parents, schema=NODE), nodes.slice(2 * pairs)])
    return one_batch(whole)
