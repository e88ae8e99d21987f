"""The scene: the sphere or circle, the tokens on it, and the eigenspaces they run to.

Above d = 3 the tokens are projected: on the eigenspaces first, on the principal directions of all frames so
far, or on three axes.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.colors import to_rgb

from tokenfield.errors import InputError, require
from tokenfield.lab.colouring import EIGENSPACE_COLOURS, Colouring
from tokenfield.lab.frame import CLUSTER_COLOURS, Frame, Stage

PROJECTIONS = ("eigenspaces", "principal directions", "axes")
#: How far lines and labels reach out of the sphere.
LINE_REACH = 1.25
#: Width of the band over which the tokens of a circle are spread, so that they can be told apart.
CIRCLE_BAND_WIDTH = 0.12
#: Radius of the ball that stands for a cluster of all tokens.
CLUSTER_BALL_RADIUS = 0.11
#: Where the camera begins, for d = 2 and above.
CAMERA_POSITIONS = {2: (0.0, -3.1, 0.0), 3: (1.75, -2.0, 1.25)}


class Scene:
    """Draws on viser's scene. `show` is called for every frame, `set` once for every run."""

    def __init__(self, server: Any):
        self.server, self.scene = server, server.scene
        self.stage: Stage | None = None
        self.projection, self.axes_text, self.solid, self.size = PROJECTIONS[0], "1, 2, 3", False, 1.0
        self.cloud: Any = None
        self.balls: list[Any] = []
        self._map = np.eye(3)
        self._moment: np.ndarray | None = None
        self._spread = np.ones(0)
        self._camera = 0
        self.scene.set_up_direction("+z")
        self.scene.configure_default_lights(cast_shadow=False)

    # -- what stays

    def set(self, stage: Stage) -> None:
        """Draw what stays during a run."""
        same = self.stage is not None and _same_picture(self.stage, stage)
        self.stage, self._moment = stage, None
        if same:
            return
        m = len(stage.weights)
        self._spread = 1 + CIRCLE_BAND_WIDTH * (np.random.default_rng(1).uniform(size=m) - 0.5) * (m > 50)
        self._aim()
        self.redraw()

    def redraw(self) -> None:
        """Draw what stays again, after a change of the projection or of the ball."""
        assert self.stage is not None
        self._map = self._projector()
        self._clear()
        self._ball()
        self._spaces()

    def _clear(self) -> None:
        for name in ("/ball", "/spaces", "/tokens", "/clusters"):
            self.scene.remove_by_name(name)
        self.cloud = None
        self.scene.add_frame("/clusters", show_axes=False)
        self.balls = [
            self.scene.add_icosphere(
                f"/clusters/{c}",
                radius=CLUSTER_BALL_RADIUS,
                subdivisions=2,
                cast_shadow=False,
                receive_shadow=False,
                visible=False,
            )
            for c in range(CLUSTER_COLOURS)
        ]

    def _aim(self) -> None:
        """Turn the cameras to a new kind of picture; leave them where people put them otherwise."""
        assert self.stage is not None
        kind = min(self.stage.d, 3)
        if kind == self._camera:
            return
        self._camera = kind
        self.server.initial_camera.position = CAMERA_POSITIONS[kind]
        self.server.initial_camera.look_at = (0.0, 0.0, 0.0)
        for client in self.server.get_clients().values():
            client.camera.position, client.camera.look_at = CAMERA_POSITIONS[kind], (0.0, 0.0, 0.0)

    def _ball(self) -> None:
        assert self.stage is not None
        self.scene.add_frame("/ball", show_axes=False)
        # eleven circles on the sphere, where every segment is dear if there is no graphics card
        turn = np.linspace(0, 2 * np.pi, 97 if self.stage.d == 2 else 41)
        if self.stage.d == 2:
            ring = np.stack([np.cos(turn), 0 * turn, np.sin(turn)], axis=1)
            self._line("/ball/ring", ring, (170, 170, 175), 1.5)
            return
        if self.solid:
            self.scene.add_icosphere(
                "/ball/solid",
                radius=0.975,
                color=(238, 240, 244),
                subdivisions=4,
                cast_shadow=False,
                receive_shadow=False,
            )
        cos, sin, rest = np.cos(turn), np.sin(turn), np.zeros_like(turn)
        circles = [
            np.stack([np.cos(h) * cos, np.cos(h) * sin, np.sin(h) + rest], axis=1)
            for h in np.radians([-60, -30, 0, 30, 60])
        ]
        circles += [
            np.stack([np.cos(a) * cos, np.sin(a) * cos, sin], axis=1)
            for a in np.radians(np.arange(0, 180, 30))
        ]
        segments = np.concatenate([np.stack([c[:-1], c[1:]], axis=1) for c in circles])
        self.scene.add_line_segments(
            "/ball/grid", segments, (205, 208, 214), thickness=1.0, thickness_units="screen"
        )

    def _spaces(self) -> None:
        assert self.stage is not None
        stage = self.stage
        self.scene.add_frame("/spaces", show_axes=False)
        if stage.limit_basis is None or stage.end_basis is None or stage.kind == "all":
            return
        mutual = stage.same and stage.limit_basis.shape == stage.end_basis.shape
        name = "V Bᵀ and V" if mutual else "V Bᵀ"
        self._space("limit", stage.limit_basis, name, EIGENSPACE_COLOURS[0], 1.0, self._masses())
        if not mutual:
            self._space("end", stage.end_basis, "V", EIGENSPACE_COLOURS[1], 1.04)

    def _space(
        self,
        key: str,
        basis: np.ndarray,
        name: str,
        colour: str,
        radius: float,
        ends: tuple[str, str] = ("", ""),
    ) -> None:
        """A line through the centre, or a great circle, with its name; more dimensions have no picture."""
        assert self.stage is not None
        rgb = tuple(round(255 * c) for c in to_rgb(colour))
        k = basis.shape[1]
        if k == 1:
            line = self._place(np.stack([-basis[:, 0], basis[:, 0]])) * LINE_REACH
            self._line(f"/spaces/{key}", line, rgb, 4.0)
            self._label(f"{key}/plus", f"{name}{ends[0]}", line[1])
            if ends[1]:
                self._label(f"{key}/minus", ends[1], line[0])
        elif k == 2 and self.stage.d > 2:
            turn = np.linspace(0, 2 * np.pi, 129)
            circle = self._place(np.cos(turn)[:, None] * basis[:, 0] + np.sin(turn)[:, None] * basis[:, 1])
            self._line(f"/spaces/{key}", radius * circle, rgb, 4.0)
            self._label(f"{key}/name", f"plane of {name}", 1.1 * circle[104])

    def _masses(self) -> tuple[str, str]:
        """How much of the mass Π sends to each end of a line, in words."""
        assert self.stage is not None
        stage = self.stage
        if stage.target is None or stage.limit_basis is None or stage.limit_basis.shape[1] != 1:
            return "", ""
        plus = float(stage.weights @ (stage.target @ stage.limit_basis[:, 0] > 0))
        return f": Π sends {plus:.0%} here (+p)", f"Π sends {1 - plus:.0%} here (−p)"

    def _label(self, key: str, text: str, at: np.ndarray) -> None:
        self.scene.add_label(
            f"/spaces/{key}", text, position=at, font_screen_scale=0.9, anchor="bottom-center"
        )

    def _line(self, name: str, points: np.ndarray, colour: Any, width: float) -> None:
        segments = np.stack([points[:-1], points[1:]], axis=1)
        self.scene.add_line_segments(name, segments, colour, thickness=width, thickness_units="screen")

    # -- projection

    def _projector(self) -> Float[np.ndarray, "d 3"]:
        assert self.stage is not None
        stage, d = self.stage, self.stage.d
        if d <= 3:
            return np.eye(d, 3) if d == 3 else np.array([[1.0, 0, 0], [0, 0, 1.0]])
        if self.projection == "axes":
            return np.eye(d)[:, parse_axes(self.axes_text, d)]
        if self.projection == "principal directions" and self._moment is not None:
            top = np.linalg.eigh(self._moment)[1][:, [-1, -2, -3]]
            # the nearest to what is shown now, so that the picture does not jump
            left, _, right = (
                np.linalg.svd(top.T @ self._map)
                if self._map.shape == top.shape
                else (np.eye(3), 0, np.eye(3))
            )
            return top @ left @ right
        spaces = [b for b in (stage.limit_basis, stage.end_basis) if b is not None]
        columns = np.concatenate(
            [*(b[:, :1] for b in spaces), *(b[:, 1:] for b in spaces), np.eye(d)], axis=1
        )
        return _first_independent(columns, 3)

    def _place(self, x: np.ndarray) -> np.ndarray:
        return x @ self._map

    # -- what moves

    def show(self, frame: Frame, colours: Colouring) -> None:
        """Draw the tokens of one frame."""
        assert self.stage is not None
        x = frame.x.astype(float)
        if self.stage.d > 3 and self.projection == "principal directions":
            second = (x.T * self.stage.weights) @ x
            self._moment = second if self._moment is None else 0.9 * self._moment + 0.1 * second
            self._map = self._projector()
        points = self._place(x)
        if self.stage.d == 2:
            points = points * self._spread[:, None]
        # not in one with what follows: a page that is to show a ball and new points at once hangs
        self._show_clusters(frame, x, colours)
        points = points.astype(np.float32)
        size = self.size * float(np.clip(0.45 / np.sqrt(len(points)), 0.009, 0.07))
        if self.cloud is None:
            self.cloud = self.scene.add_point_cloud(
                "/tokens",
                points,
                colours.rgb,
                point_size=size,
                point_shape="circle",
                precision="float32",
                point_shading="flat",
            )
            return
        with self.server.atomic():
            self.cloud.points = points
            self.cloud.colors = colours.rgb
            self.cloud.point_size = size

    def _show_clusters(self, frame: Frame, x: np.ndarray, colours: Colouring) -> None:
        """A ball for every tight cluster, of a surface like its mass: a thousand tokens in one place are one
        speck otherwise.
        """
        assert self.stage is not None
        for c, ball in enumerate(self.balls):
            inside = frame.colour == c
            w = self.stage.weights[inside]
            mass = float(w.sum())
            radius = CLUSTER_BALL_RADIUS * np.sqrt(mass)
            centre = w @ x[inside] / max(mass, 1e-300)
            # 1 − |centre|² is the mean square distance to the centre
            tight = mass > 0 and 1 - centre @ centre < radius**2
            ball.visible = bool(tight)
            if tight:
                ball.position = self._place((centre / np.linalg.norm(centre))[None])[0]
                ball.radius = float(radius)
                ball.color = tuple(int(v) for v in np.round(w @ colours.rgb[inside] / mass))


def _same_picture(one: Stage, other: Stage) -> bool:
    """Whether all that stays during a run is the same in both."""
    names = ("weights", "start", "limit_basis", "end_basis", "target")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return one.kind == other.kind and all(
        a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in pairs
    )


def parse_axes(text: str, d: int) -> list[int]:
    """Three different axes out of 1, …, d, from text such as "1, 2, 3"."""
    try:
        axes = [int(part) - 1 for part in text.split(",")]
    except ValueError:
        raise InputError(f"`axes` must be three whole numbers such as 1, 2, 3, but was {text!r}") from None
    right = len(set(axes)) == len(axes) == 3 and all(0 <= a < d for a in axes)
    require(right, "axes", f"be three different numbers from 1 to {d}", repr(text))
    return axes


def _first_independent(columns: np.ndarray, count: int) -> np.ndarray:
    """The first so many columns that are independent, made orthonormal."""
    chosen: list[np.ndarray] = []
    for column in columns.T:
        rest = column - sum((c * (c @ column) for c in chosen), np.zeros(len(column)))
        if np.linalg.norm(rest) > 1e-6:
            chosen.append(rest / np.linalg.norm(rest))
        if len(chosen) == count:
            break
    return np.stack(chosen, axis=1)
