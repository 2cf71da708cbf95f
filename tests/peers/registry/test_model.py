"""The model of a schema registry answers each call as Apicurio does, except where only Confluent's server does."""

from __future__ import annotations

import uuid

import pytest

from tests.integration.support.registry_calls import CALLS, answers
from tests.integration.support.schema_registry import model_registry
from tests.peers.support.apicurio import apicurio

ONLY_CONFLUENT = {
    "register nothing": "422, for an empty schema; Apicurio answers 500",
    "version 0": "422, for an invalid version; Apicurio answers 404, as for a missing one",
    "version that is no number": "422, the same",
    "level of a subject without one": "404, with the code 40408; Apicurio answers NONE",
    "delete a subject": "the versions that were not deleted before; Apicurio answers all",
}
"""By call: what the model does as Confluent documents it, and Apicurio does otherwise."""


def test_each_exception_is_a_call() -> None:
    assert ONLY_CONFLUENT.keys() <= {call.name for call in CALLS}


@pytest.mark.long
def test_the_model_answers_as_apicurio_does() -> None:
    subject = f"t{uuid.uuid4().hex}"
    with apicurio() as url:
        real = answers(url, subject)
    with model_registry() as registry:
        modelled = answers(registry.url, subject)
    differing = {name: (real[name], modelled[name]) for name in real if real[name] != modelled[name]}
    assert differing.keys() == ONLY_CONFLUENT.keys(), differing
