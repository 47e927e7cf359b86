"""JSON documents of cost models of any form, with the evidence of their fit."""

import json
from typing import Any

from tf_libra.cost_model.base import CostModel
from tf_libra.cost_model.contention import ContentionModel
from tf_libra.cost_model.fit_quality import Evidence
from tf_libra.internal import validation

_EVIDENCE = "evidence"


def encode_cost_model(model: CostModel, evidence: Evidence) -> str:
    """Returns the model as JSON text with its evidence; both readers accept it."""
    return json.dumps(model.to_document() | {_EVIDENCE: evidence.to_document()}, indent=1)


def cost_model_from_json(document: Any) -> CostModel:
    """Read a cost model from its JSON text; a `ValueError` names the field that is wrong."""
    value = validation.json_object(ContentionModel.FORMAT, document)
    _decode_evidence(value)
    return CostModel.from_document({k: field for k, field in value.items() if k != _EVIDENCE})


def evidence_from_json(document: str) -> Evidence | None:
    """Read the evidence in the JSON text of a valid model; None without any."""
    return _decode_evidence(json.loads(document))


def _decode_evidence(document: dict[str, Any]) -> Evidence | None:
    evidence = document.get(_EVIDENCE)
    return None if evidence is None else Evidence.parse(_EVIDENCE, evidence)
