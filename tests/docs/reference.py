"""docs/reference/generate.py as a module, whose place is beside the pages that it writes."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from tests.docs.pages import ROOT

HOME = ROOT / "docs" / "reference"


def _loaded() -> ModuleType:
    spec = spec_from_file_location("windrow_reference", HOME / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generate = _loaded()
