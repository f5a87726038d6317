"""What one run is to be done with: the loop's configuration with the options of the run put over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..contracts import Provider
from ..errors import ConfigError
from ..messages import JSON, Model, ToolSpec
from ..responses import ModelSettings
from .config import Limits, LoopConfig
from .tools import ToolSet

if TYPE_CHECKING:
    from .output import Output


def _check_provider(given: object) -> None:
    if hasattr(given, "stream") and hasattr(given, "default_model"):
        return
    way = f": pilothouse.provider({given!r})" if isinstance(given, str) else ""
    raise ConfigError(
        f"a loop needs a Provider (tag, default_model, stream, aclose), got {type(given).__name__}{way}"
    )


class Providers:
    """The providers of a loop by name; a single one answers for every model."""

    def __init__(self, given: Provider | Mapping[str, Provider]) -> None:
        if isinstance(given, Mapping):
            if not given:
                raise ConfigError("provider: the mapping is empty")
            self._named: dict[str, Provider] = dict(given)
            self._only: Provider | None = None
        else:
            self._named = {}
            self._only = given
        for provider in self._named.values() if self._only is None else (self._only,):
            _check_provider(provider)

    @property
    def default_model(self) -> Model:
        """The model of the first one."""
        if self._only is not None:
            return self._only.default_model
        name, provider = next(iter(self._named.items()))
        return msgspec.structs.replace(provider.default_model, provider=name)

    def of(self, model: Model) -> Provider:
        """Who serves that model.

        Raises:
            ConfigError: nobody does.
        """
        if self._only is not None:
            return self._only
        try:
            return self._named[model.provider]
        except KeyError:
            known = ", ".join(self._named)
            raise ConfigError(
                f"model {model.id}: no provider {model.provider!r} (there are: {known})"
            ) from None


def check_prices(model: Model, limits: Limits) -> None:
    """A model without prices cannot be kept within a limit on money (LP-38).

    Raises:
        ConfigError: this one cannot.
    """
    if limits.cost is not None and model.prices is None:
        raise ConfigError(
            f"limits.cost: model {model.id} has no prices, so nobody can say what it costs: give its Model prices, or "
            "limit tokens instead"
        )


class Plan:
    """Settings of one run, resolved once.

    Attributes:
        model, settings, system_prompt, limits: what the first request uses.
        send_timeout, stream_idle_timeout: seconds or None.
        first_poll: whether the first turn polls for steering (LP-1).
        compact: the context is made smaller before the first request.
        agents_above: how many agents the run stands below.
        output: what the final answer must be, None for any text.
        tools: makes the tool set of a turn.
    """

    def __init__(
        self,
        config: LoopConfig,
        providers: Providers,
        system_prompt: str | None,
        tools: Callable[[], ToolSet],
        options: Mapping[str, JSON],
        output: Output | None = None,
        instructions: str = "",
    ) -> None:
        self.output = output
        self.config = config
        self.tools = _with_client_tools(tools, options.get("loop.client_tools"))
        self.providers = providers
        self.model = _model(config, providers, options.get("loop.model"))
        self.settings = _settings(config.settings, options.get("loop.settings"))
        self.system_prompt: str | None = options.get("loop.system_prompt", system_prompt)
        if not isinstance(self.system_prompt, str | None):
            raise ConfigError(f"loop.system_prompt: {self.system_prompt!r} is no text")
        if instructions:
            self.system_prompt = (
                f"{self.system_prompt}\n\n{instructions}" if self.system_prompt else instructions
            )
        self.limits = _limits(config.limits, options.get("loop.limits"))
        check_prices(self.model, self.limits)
        self.send_timeout = _seconds(options, "loop.send_timeout_ms", config.send_timeout)
        self.stream_idle_timeout = _seconds(
            options, "loop.stream_idle_timeout_ms", config.stream_idle_timeout
        )
        self.first_poll = options.get("loop.first_poll") is not False
        self.compact = options.get("loop.compact") is True
        self.agents_above = _count(options, "loop.agents_above")

    def provider_of(self, model: Model) -> Provider:
        """Who serves that model in this run.

        Raises:
            ConfigError: nobody does, or it cannot be kept within the limits.
        """
        check_prices(model, self.limits)
        return self.providers.of(model)


def _with_client_tools(tools: Callable[[], ToolSet], given: JSON) -> Callable[[], ToolSet]:
    """The loop's tools, and those of the run that a client runs (TL-16)."""
    if not given:
        return tools
    from .ready_tools import external_tool

    try:
        specs = msgspec.convert(given, list[ToolSpec])
    except msgspec.ValidationError as error:
        raise ConfigError(f"loop.client_tools: {error}") from None
    client = [external_tool(spec) for spec in specs]
    made: dict[str, ToolSet] = {}

    def supply() -> ToolSet:
        own = tools()
        if own.digest not in made:
            made[own.digest] = ToolSet([*own, *client])
        return made[own.digest]

    supply()  # a name that the loop has already is refused before anything is recorded
    return supply


def _model(config: LoopConfig, providers: Providers, wanted: JSON) -> Model:
    model = config.model or providers.default_model
    if wanted is None or wanted == model.id:
        return model
    if not isinstance(wanted, str) or not wanted:
        raise ConfigError(f"loop.model: {wanted!r} is no model id")
    # Sizes and prices are those of another model: unknown is better than wrong.
    return Model(wanted, model.provider)


def _settings(settings: ModelSettings, changes: JSON) -> ModelSettings:
    if changes is None:
        return settings
    try:
        merged: dict[str, Any] = {**msgspec.to_builtins(settings), **changes}
        return msgspec.convert(merged, ModelSettings)
    except (TypeError, msgspec.ValidationError) as error:
        raise ConfigError(f"loop.settings: {error}") from None


def _limits(limits: Limits, changes: JSON) -> Limits:
    if changes is None:
        return limits
    if not isinstance(changes, dict):
        raise ConfigError(f"loop.limits: {changes!r} is no object")
    return limits.lowered(changes)


def _count(options: Mapping[str, JSON], name: str) -> int:
    given = options.get(name, 0)
    if type(given) is not int or given < 0:
        raise ConfigError(f"{name}: {given!r} is no count")
    return given


def _seconds(options: Mapping[str, JSON], name: str, default: float | None) -> float | None:
    if name not in options:
        return default
    given = options[name]
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or given <= 0:
        raise ConfigError(f"{name}: {given!r} is no number of milliseconds")
    return given / 1000
