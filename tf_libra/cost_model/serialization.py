"""Reader of cost models of any form."""

import json
from typing import Any

from tf_libra.cost_model.base import CostModel
from tf_libra.cost_model.contention import ContentionModel
from tf_libra.cost_model.cpu_share import ProcessorModel
from tf_libra.cost_model.fit_quality import KEY, evidence_of


def cost_model_from_json(document: Any) -> CostModel:
    """Read a cost model from its JSON text; a `ValueError` names the field that is wrong."""
    try:
        parsed = json.loads(document)
    except (TypeError, ValueError, RecursionError):
        parsed = None  # the reader below says what is wrong
    if isinstance(parsed, dict) and KEY in parsed:
        evidence_of(parsed)  # says what is wrong with it
        document = json.dumps({name: value for name, value in parsed.items() if name != KEY})
    if isinstance(parsed, dict) and parsed.get("format") == ProcessorModel.FORMAT:
        return ProcessorModel.from_json(document)
    return ContentionModel.from_json(document)
