"""A cost model of any form, read by what stands in it."""

import json

import pytest

from tf_libra import ContentionModel, ProcessorModel
from tf_libra.cost_model.fit_quality import cost_model_from_json

CONTENTION = ContentionModel(4, 1e-5, (1.0, 0.08), (2e9, 1.2e9, 0.4), (2.4e9, 1.3e9, 0.5))


@pytest.mark.parametrize("model", [CONTENTION, ProcessorModel(2, 1e-5, work_per_byte=1e-9)])
def test_every_form_round_trips(model):
    assert cost_model_from_json(model.to_json()) == model


def test_wrong_evidence_is_rejected():
    document = json.loads(CONTENTION.to_json())
    with pytest.raises(ValueError, match="evidence"):
        cost_model_from_json(json.dumps(document | {"evidence": "much"}))


@pytest.mark.parametrize("document", ["", "[]", "null", "{", None, "[" * 100_000, '{"format": 7}'])
def test_text_without_cost_model_is_rejected(document):
    with pytest.raises(ValueError, match=r"\w"):
        cost_model_from_json(document)
