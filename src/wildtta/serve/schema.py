"""What the interface's description (OpenAPI) says of bodies and answers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

TITLE = "wildtta: a classifier that adapts to every tenant's images"


class Error(BaseModel):
    """Why a request was refused, and what to do."""

    error: str


class Prediction(BaseModel):
    """The answer to one request."""

    tenant: str
    id: str = Field(description="Of the request; the caller's, or one made up.")
    classes: list[int] = Field(description="The predicted class of each image.")
    confidence: list[float | None] = Field(description="Its probability.")
    names: list[str] | None = Field(None, description="Of the classes, where the service knows them.")
    probabilities: list[list[float | None]] | None = None
    logits: list[list[float | None]] | None = None


class HistoryPoint(BaseModel):
    """A stretch of a tenant's life."""

    time: float
    seconds: float
    requests: int
    images: int
    entropy: float
    top_share: float
    distance: float | None
    learned: int
    dropped: int
    rung: int
    alarms: int


class HistoryEvent(BaseModel):
    """Something that people should know."""

    time: float
    kind: str = Field(description="guard, disk, restart or verb.")
    text: str


class TenantStatus(BaseModel):
    """What a service knows of a tenant; counters since its replica started."""

    name: str
    paused: bool
    rung: str = Field(description="What its guard lets it do: learn, slow, pause, trial or source.")
    guarded: bool
    rests: bool = Field(description="Whether the method leaves the weights alone at present.")
    distance: float | None
    unsaved_steps: int
    requests: int
    images: int
    learned: int
    dropped: int
    alarms: int
    top_share: float
    top_class: int | None
    events: list[HistoryEvent]
    points: list[HistoryPoint]


class Health(BaseModel):
    """Whether every replica answers."""

    status: str
    missing: list[int]
    alarms: list[str]


def _refusals(*statuses: tuple[int, str]) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Error, "description": text} for status, text in statuses}


ANSWERS = _refusals(
    (400, "A name or an id that cannot be used, or an empty body"),
    (401, "No token"),
    (403, "A token of somebody else, a page of another origin, or one tenant too many"),
    (408, "The body did not come in time"),
    (409, "The id was used for other images, or there is nothing to go back to"),
    (413, "Too many bytes, pixels or images"),
    (415, "Neither PNG, JPEG, .npy nor JSON"),
    (422, "A body that cannot be read as images of the expected size"),
    (429, "Too much of this tenant waits: send it again, with the same id"),
    (503, "The tenant's replica is starting: send it again, with the same id"),
)

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}

IMAGES: dict[str, Any] = {
    "required": True,
    "description": "The kind is told by the first bytes. Arrays are [n, 3, height, width] or [3, height, width].",
    "content": {
        "image/png": _BINARY,
        "image/jpeg": _BINARY,
        "application/x-npy": _BINARY,
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["images"],
                "properties": {
                    "images": {"type": "array", "items": {}, "description": "Whole numbers from 0 to 255."},
                    "normalised": {"type": "boolean", "description": "true: the network's own units."},
                },
            }
        },
    },
}
