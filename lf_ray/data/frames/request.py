"""What decoders are asked, and what they answer: plain values that travel between processes."""

from dataclasses import dataclass, field

from lf_ray.data.frames.arena import ArenaPlace, FrameArena
from lf_ray.data.frames.decoder import BadFrame, Footage, FrameDecoder
from lf_ray.data.video import Frame, FrameSize
from lf_ray.errors import DataError


@dataclass(frozen=True)
class DecodeRequest:
    """Rows of one episode and camera that are wanted.

    Attributes:
        camera: number of the camera, for whoever asked.
        first_row: row of the data set that the episode starts at.
        offsets: wanted rows, counted from there.
        place: the arena that keeps them, and what is passed on the way; None sends them back.
    """

    camera: int
    first_row: int
    footage: Footage
    offsets: tuple[int, ...]
    size: FrameSize
    place: ArenaPlace | None


@dataclass
class DecodeReply:
    """Frames by row of the data set that no arena took, and rows that could not be had."""

    camera: int
    frames: dict[int, Frame] = field(default_factory=dict)
    bad: dict[int, BadFrame] = field(default_factory=dict)


class Answerer:
    """Answers requests within one thread; keeps files and arenas open."""

    def __init__(self, threads: int) -> None:
        self._decoder = FrameDecoder(threads)
        self._arenas: dict[ArenaPlace, FrameArena | None] = {}

    def answer(self, request: DecodeRequest) -> DecodeReply:
        """Returns the frames of a request, or writes them into its arena."""
        reply = DecodeReply(request.camera)
        arena = self._arena(request)
        wanted = set(request.offsets)
        try:
            keeps = arena is not None and not arena.is_full
            frames = self._decoder.frames(request.footage, request.offsets, request.size, keeps)
            for offset, frame in frames:
                row = request.first_row + offset
                is_kept = arena is not None and arena.write(row, frame)
                if offset in wanted and not is_kept:
                    reply.frames[row] = frame
            gone = self._decoder.bad
        except DataError as error:
            gone = unreadable(request, str(error)).bad
            gone = {row - request.first_row: reason for row, reason in gone.items()}
        for offset, reason in gone.items():
            reply.bad[request.first_row + offset] = reason
            if arena is not None:
                arena.mark_bad(request.first_row + offset)
        return reply

    def _arena(self, request: DecodeRequest) -> FrameArena | None:
        place = request.place
        if place is None:
            return None
        if place not in self._arenas:
            try:
                self._arenas[place] = FrameArena(
                    place.path, place.num_frames, request.size, place.max_bytes
                )
            except OSError:
                self._arenas[place] = None
        return self._arenas[place]

    def close(self) -> None:
        """Closes all files."""
        self._decoder.close()
        for arena in self._arenas.values():
            if arena is not None:
                arena.close()
        self._arenas.clear()


def unreadable(request: DecodeRequest, reason: str) -> DecodeReply:
    """Returns the reply to a request of which nothing could be had."""
    path = request.footage.span.path
    bad = {request.first_row + offset: BadFrame(path, offset, reason) for offset in request.offsets}
    return DecodeReply(request.camera, bad=bad)
