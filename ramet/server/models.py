"""Models: the names that are served, and their two routes."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel, Field

from ramet.decide.calibration import Calibration, Kind, TypeTemperature
from ramet.errors import UnknownModel
from ramet.quoting import shown
from ramet.request import Method
from ramet.server.rendering import ErrorBody
from ramet.server.served import Served
from ramet.server.settings import ServerSettings


class CalibrationCard(BaseModel):
    """The calibration that answers hold to, where one is loaded."""

    digest: str  # answers name it so
    method: Method
    reading: dict[
        str, int | float | bool | None
    ]  # fields of a request, as it must have them for the calibration to count
    temperatures: dict[Kind, TypeTemperature]
    questions: int  # that have a temperature or a threshold of their own
    rows: int  # that it was fitted on

    @classmethod
    def of(cls, calibration: Calibration) -> Self:
        return cls(
            digest=calibration.digest,
            method=calibration.model.method,
            reading=calibration.reading.model_dump(),
            temperatures=calibration.temperatures,
            questions=len(calibration.questions),
            rows=calibration.fitted_on.rows,
        )


class ModelCard(BaseModel):
    """A model or an alias, with the fields of System One and those of OpenAI."""

    name: str
    description: str
    release_date: str  # YYYY-MM-DD
    id: str
    object: Literal["model"] = "model"
    created: int  # seconds since 1970
    owned_by: str = "ramet"
    x_fingerprint: str  # of the weights, configuration and tokenizer, byte by byte
    x_calibration: CalibrationCard | None = Field(default=None, exclude_if=lambda value: value is None)


class ModelList(BaseModel):
    """The same cards twice: System One's clients read `models`, OpenAI's read `data`."""

    models: list[ModelCard]
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Models:
    """The served model under its name and its aliases. Raises ValueError for an alias that leads nowhere."""

    def __init__(self, engine: Served, settings: ServerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._names = [engine.name, *(alias for alias in settings.aliases if alias != engine.name)]
        for alias in settings.aliases:
            self._check_alias(alias)

    def resolve(self, name: str) -> str:
        """The name of the model that a name stands for. Raises UnknownModel."""
        if name not in self._names:
            raise UnknownModel(f"model {shown(name)} is not served here; served: {', '.join(self._names)}")
        return self._engine.name

    def card(self, name: str) -> ModelCard:
        """The card of a name. Raises UnknownModel."""
        model = self.resolve(name)
        released, calibration = self._settings.release_date, self._engine.calibration
        return ModelCard(
            name=name,
            description=self._description() if name == model else f"Alias of {model}",
            release_date=released.isoformat(),
            id=name,
            created=int(datetime.combine(released, time(), UTC).timestamp()),
            x_fingerprint=self._engine.describe()["fingerprint"],
            x_calibration=None if calibration is None else CalibrationCard.of(calibration),
        )

    def router(self) -> APIRouter:
        router = APIRouter(tags=["models"])
        router.add_api_route("/v1/models", self.list_models, methods=["GET"], summary="List the models")
        router.add_api_route(
            "/v1/models/{name:path}",
            self.get_model,
            methods=["GET"],
            summary="One model, by its name or alias; slashes in it may be percent-encoded or not",
            responses={404: {"model": ErrorBody, "description": "No model of that name (`unknown_model`)"}},
        )
        return router

    async def list_models(self) -> ModelList:
        cards = [self.card(name) for name in self._names]
        return ModelList(models=cards, data=cards)

    async def get_model(self, name: str) -> ModelCard:
        return self.card(name)

    def _description(self) -> str:
        chosen = self._engine.describe()
        how = ", ".join(chosen[key] for key in ("device", "dtype") if key in chosen)
        return f"Decision model {self._engine.name}" + (f" ({how})" if how else "")

    def _check_alias(self, alias: str) -> None:
        seen: list[str] = []
        target: str | None = alias
        while target is not None and target != self._engine.name:
            if target in seen or target not in self._settings.aliases:
                raise ValueError(f"alias {alias!r} stands for {target!r}, which is not served")
            seen.append(target)
            target = self._settings.aliases[target]
