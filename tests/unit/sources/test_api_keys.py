"""API keys of engines: from the environment, as a header."""

from __future__ import annotations

import aiohttp
import pytest

from ext_proc.config import parse
from ext_proc.core.errors import ConfigError
from ext_proc.core.model import Endpoint
from ext_proc.core.pool import EndpointSpec, Registry
from ext_proc.core.prompts.token_question import TokenQuestion
from ext_proc.sources.adapters import Adapters
from ext_proc.sources.api_keys import ApiKeys, read_keys
from ext_proc.sources.engine_tokenizer import EngineTokenizer
from ext_proc.sources.models import ModelLearner
from tests.unit.sources.serving import page, serving
from tests.waiting import until

CONFIG = "pools: {keyed: {endpoints: ['10.0.0.1:1'], api_key_env: ENGINE_KEY}, open: {endpoints: ['10.0.0.2:1']}}"
BOTH = b'{"data":[{"id":"m"}],"tokens":[1,2]}'


@pytest.mark.parametrize("key", [None, "", "two words", "line\nbreak", "schl\u00fcssel"])
def test_a_key_that_cannot_be_sent_is_refused(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the field, and never the key."""
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    if key is not None:
        monkeypatch.setenv("ENGINE_KEY", key)
    with pytest.raises(ConfigError) as caught:
        read_keys(parse(CONFIG))
    assert caught.value.path == "pools.keyed.api_key_env"
    assert not key or key not in str(caught.value)


async def test_the_key_goes_with_every_question_to_engines_of_its_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models, adapters and tokens; engines of other pools do not see it."""
    monkeypatch.setenv("ENGINE_KEY", "s3cret")
    keys, question = ApiKeys(), TokenQuestion(b'"prompt":"a"')
    keys.use(read_keys(parse(CONFIG)))
    async with serving() as engine, aiohttp.ClientSession() as http:
        engine.answer = page(BOTH)
        for pool in ("keyed", "open"):
            endpoint = Endpoint(address=engine.address, pool=pool, slot=0)
            await Adapters(http, keys).name("m", (endpoint,))
            await EngineTokenizer(http, keys).tokens(question, "m", (endpoint,))
        assert engine.authorizations == ["Bearer s3cret", "Bearer s3cret", None, None]
        engine.authorizations.clear()
        registry = Registry()
        registry.replace("keyed", [EndpointSpec(address=engine.address)])
        learner = ModelLearner(http, registry, lambda _: None, lambda *_: None, keys=keys)
        await learner._ask(registry.snapshot.endpoints[0])
        await until(lambda: registry.snapshot.serves("m"))
        assert engine.authorizations == ["Bearer s3cret"]
