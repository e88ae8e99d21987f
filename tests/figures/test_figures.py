"""Figures: what is drawn is where it should be, as large as it should be, and on disk whole or not at all."""

import io
import os
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.animation import writers
from matplotlib.collections import EllipseCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

import tokenfield as tkf
from tokenfield import figures
from tokenfield.errors import InputError
from tokenfield.figures import discs, pictures
from tokenfield.laws.initial import mixture, uniform
from tokenfield.laws.tokens import Tokens
from tokenfield.runs.trajectory import Trajectory


def ring(n, weights=None):
    theta = (np.arange(n) + 0.5) * 2 * np.pi / n
    return Tokens(np.stack([np.cos(theta), np.sin(theta)], 1), weights)


def globe(n):
    """n tokens on a spiral around the sphere, no two close."""
    z, turn = (np.arange(n) + 0.5) * 2 / n - 1, np.pi * (3 - np.sqrt(5)) * np.arange(n)
    return Tokens(np.stack([np.sqrt(1 - z**2) * np.cos(turn), np.sqrt(1 - z**2) * np.sin(turn), z], 1))


def film(n=12, times=(0.0, 0.1, 0.3, 1.0, 3.0, 10.0), d=2, weights=None):
    """Tokens that turn towards the first axis, made by hand."""
    start = np.asarray(ring(n).x if d == 2 else uniform(n, d, 3).x)
    x = np.stack([np.asarray(_unit(start + t * np.eye(d)[0])) for t in times])
    return Trajectory(
        ts=np.array(times),
        x=x,
        weights=np.full(n, 1 / n) if weights is None else weights,
        snapshot_ts=np.array(times),
        measured={"r": np.ones(len(times))},
        stats={},
        inputs={},
        status="by hand",
        complete=True,
    )


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def drawn_discs(figure, axis=0):
    """Offsets, diameters and face colours of the far and the near discs."""
    found = [c for c in figure.axes[axis].collections if isinstance(c, EllipseCollection)]
    return [(np.asarray(c.get_offsets()), np.asarray(c.get_widths()), c.get_facecolor()) for c in found]


def pixels(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    return buffer.getvalue()


def as_rows(x):
    return x[np.lexsort(np.round(x, 9).T)]


class TestSnapshot:
    @pytest.mark.parametrize("n", [1, 3, 60, 400])
    def test_every_token_of_an_even_circle_is_one_disc_at_its_place(self, n):
        far, near = drawn_discs(figures.snapshot(ring(n)))
        assert len(far[0]) == 0
        np.testing.assert_allclose(as_rows(near[0]), as_rows(np.asarray(ring(n).x)), atol=1e-12)
        np.testing.assert_allclose(near[1], near[1][0])

    def test_sphere_is_seen_from_the_azimuth_and_elevation(self):
        azimuth, elevation = np.radians(50.0), np.radians(25.0)
        x = np.asarray(globe(40).x)
        # turn the azimuth back about the third axis, then the elevation about the second, by hand
        c, s = np.cos(azimuth), np.sin(azimuth)
        x1, x2 = c * x[:, 0] + s * x[:, 1], -s * x[:, 0] + c * x[:, 1]
        c, s = np.cos(elevation), np.sin(elevation)
        towards, right, up = c * x1 + s * x[:, 2], x2, -s * x1 + c * x[:, 2]
        far, near = drawn_discs(figures.snapshot(Tokens(x), view=(50.0, 25.0)))
        flat = np.stack([right, up], 1)
        np.testing.assert_allclose(as_rows(near[0]), as_rows(flat[towards >= 0]), atol=1e-12)
        np.testing.assert_allclose(as_rows(far[0]), as_rows(flat[towards < 0]), atol=1e-12)
        assert far[2][0, 3] < 0.5 < near[2][0, 3]

    def test_north_pole_is_up_and_a_token_towards_the_viewer_is_in_the_centre(self):
        eye = np.array([np.cos(0.5) * np.cos(1.0), np.cos(0.5) * np.sin(1.0), np.sin(0.5)])
        figure = figures.snapshot(Tokens([eye, [0, 0, 1]]), view=(np.degrees(1.0), np.degrees(0.5)))
        _, near = drawn_discs(figure)
        np.testing.assert_allclose(near[0], [[0, 0], [0, np.cos(0.5)]], atol=1e-12)

    def test_area_grows_with_weight_and_a_cluster_looks_like_its_mass(self):
        single = Tokens([[1, 0], [0, 1], [-1, 0]], [0.6, 0.3, 0.1])
        angles = np.concatenate([1e-3 * np.linspace(-1, 1, 60), [np.pi / 2] * 30, [np.pi] * 10])
        cloud = Tokens(np.stack([np.cos(angles), np.sin(angles)], 1))
        for tokens in (single, cloud):
            _, (at, width, _) = drawn_discs(figures.snapshot(tokens))
            np.testing.assert_allclose(at, single.x, atol=1e-6)  # heavy first
            area = (width / 2) ** 2 - discs.FULL_RADIUS**2 * np.array([0.6, 0.3, 0.1])
            np.testing.assert_allclose(area, area[0], rtol=1e-9)
            assert 0 < area[0] <= 0.02**2 + 1e-12

    def test_no_disc_covers_the_centre_of_another_and_mass_and_mean_are_kept(self):
        x = _unit(np.array([1.0, 0, 0]) + 0.08 * np.random.default_rng(0).normal(size=(800, 3)))
        tokens = discs.Discs(x, np.full(800, 1 / 800), np.arange(800.0))
        drawn = discs.gather(tokens, 0.014)
        radius = discs.radius(drawn.weights, 0.014)
        gaps = np.linalg.norm(drawn.at[:, None] - drawn.at[None], axis=-1) + 9 * np.eye(len(radius))
        assert 1 < len(radius) < 800
        assert np.all(gaps > np.maximum(radius[:, None], radius[None]))
        np.testing.assert_allclose(drawn.weights.sum(), 1)
        np.testing.assert_allclose(drawn.weights @ drawn.at, x.mean(0), atol=1e-12)

    def test_tokens_without_weight_are_drawn(self):
        _, (at, width, _) = drawn_discs(figures.snapshot(Tokens([[1, 0], [0, 1], [0, 1]], [1.0, 0.0, 0.0])))
        np.testing.assert_allclose(at, [[1, 0], [0, 1]], atol=1e-12)
        assert width[1] > 0

    def test_mean_is_marked(self):
        tokens = Tokens([[1, 0], [0, 1]], [0.75, 0.25])
        line, mark = figures.snapshot(tokens).axes[0].get_lines()
        np.testing.assert_allclose(mark.get_xydata(), [[0.75, 0.25]])
        np.testing.assert_allclose(line.get_xydata(), [[0, 0], [0.75, 0.25]])

    def test_high_dimension_is_projected_on_principal_directions_and_says_so(self):
        rng = np.random.default_rng(1)
        frame = np.linalg.qr(rng.normal(size=(7, 7)))[0]
        spread = np.concatenate(
            [np.asarray(globe(20).x) * [1.4, 1, 0.7], rng.normal(size=(20, 4)) / 9], axis=1
        )
        tokens = Tokens(_unit(spread) @ frame.T)
        size, directions = np.linalg.eigh(np.asarray(tokens.moments().second))
        expected = np.asarray(tokens.x) @ directions[:, [-1, -2]]
        figure = figures.snapshot(tokens)
        far, near = drawn_discs(figure)
        drawn = np.concatenate([far[0], near[0]])
        for k in range(2):  # a principal direction has no sign
            np.testing.assert_allclose(
                np.sort(np.abs(drawn[:, k])), np.sort(np.abs(expected[:, k])), atol=1e-9
            )
        label = figure.axes[0].get_xlabel()
        assert "principal directions of 7" in label and f"{size[-3:].sum():.0%}" in label

    def test_many_tokens_are_thinned_but_heavy_ones_stay(self):
        heavy = Tokens([[0.6, 0.0, 0.8]])
        tokens = mixture([uniform(60_000, 3, 0), heavy], [0.7, 0.3])
        (far, near) = drawn_discs(figures.snapshot(tokens))
        count = len(far[0]) + len(near[0])
        assert 10_000 < count <= discs.MAX_DISCS
        np.testing.assert_allclose(near[1].max() / 2, discs.FULL_RADIUS * np.sqrt(0.3), rtol=5e-3)
        area = np.concatenate([far[1], near[1]]) ** 2 / 4 - 0.004**2
        np.testing.assert_allclose(area.sum() / discs.FULL_RADIUS**2, 1, rtol=0.02)
        rastered = [c.get_rasterized() for c in figures.snapshot(tokens).axes[0].collections]
        assert all(rastered)

    def test_two_calls_give_the_same_pixels(self):
        tokens = uniform(300, 3, 5)
        assert pixels(figures.snapshot(tokens)) == pixels(figures.snapshot(tokens))

    def test_draws_into_given_axes_and_leaves_the_style_alone(self):
        figure = Figure()
        left, _right = figure.subplots(1, 2)
        assert figures.snapshot(ring(5), ax=left, title="here") is figure
        assert left.get_title() == "here"
        assert matplotlib.rcParams["font.size"] == matplotlib.rcParamsDefault["font.size"]


class TestColour:
    def test_labels_have_the_palette_and_a_disc_has_its_majority(self):
        x = [[0, 1]] + 3 * [[-1, 0]] + 3 * [[1, 0]]
        _, (at, _, faces) = drawn_discs(figures.snapshot(Tokens(x), colour=[1, 2, 0, 2, 0, 2, 0]))
        np.testing.assert_allclose(at, [[-1, 0], [1, 0], [0, 1]], atol=1e-12)
        np.testing.assert_allclose(faces[:, :3], [to_rgb(figures.PALETTE[k]) for k in (2, 0, 1)])

    def test_beyond_seven_labels_the_light_ones_are_grey(self):
        weights = np.array([1, 9, 8, 7, 6, 5, 4, 3, 2.0])
        figure = figures.snapshot(ring(9, weights / weights.sum()), colour=np.arange(9), colour_label="who")
        _, (_, _, faces) = drawn_discs(figure)
        np.testing.assert_allclose(faces[:7, :3], [to_rgb(c) for c in figures.PALETTE[:7]])
        np.testing.assert_allclose(faces[7:, :3], [to_rgb(figures.OTHER)] * 2)
        ticks = [t.get_text() for t in figure.axes[1].get_yticklabels()]
        assert ticks == ["1", "2", "3", "4", "5", "6", "7", "other"]
        assert figure.axes[1].get_ylabel() == "who"

    def test_numbers_have_a_continuous_scale_and_constant_ones_are_fine(self):
        _, (_, _, faces) = drawn_discs(figures.snapshot(ring(50), colour=np.linspace(0, 1, 50)))
        light = faces[:, :3] @ [0.2126, 0.7152, 0.0722]
        assert np.all(np.diff(light) > 0)
        drawn_discs(figures.snapshot(ring(5), colour=np.ones(5)))

    @pytest.mark.parametrize(
        ("colour", "sentence"),
        [
            ([1.0, 2.0], "`colour` must have shape (5,), one per token, but was of shape (2,)"),
            ([1.0, 2.0, np.nan, 0, 0], "`colour` must be finite, but was [nan]"),
            (["a"] * 5, "`colour` must be an array of real numbers, but was"),
        ],
    )
    def test_bad_colours(self, colour, sentence):
        with pytest.raises(InputError) as error:
            figures.snapshot(ring(5), colour=colour)
        assert str(error.value).startswith(sentence)

    @pytest.mark.parametrize("view", [(1.0,), (0.0, np.inf), 3.0])
    def test_bad_view(self, view):
        with pytest.raises(InputError, match=r"`view` must be \(azimuth, elevation\) in degrees, but was"):
            figures.snapshot(uniform(5, 3, 0), view=view)


class TestSmallMultiples:
    def test_nearest_snapshots_with_their_times(self):
        figure = figures.small_multiples(film(), times=[0.28, 0, 9, 100], columns=2)
        assert [ax.get_title() for ax in figure.axes if ax.axison] == ["t = 0", "t = 0.3", "t = 10"]
        assert len(figure.axes) == 4
        _, near = drawn_discs(figure, 1)
        np.testing.assert_allclose(as_rows(near[0]), as_rows(film().x[2]), atol=1e-12)

    def test_eight_panels_by_default_first_and_last_among_them(self):
        figure = figures.small_multiples(film(times=tuple(np.linspace(0, 20, 41))))
        titles = [ax.get_title() for ax in figure.axes]
        assert len(titles) == 8 and titles[0] == "t = 0" and titles[-1] == "t = 20"

    def test_all_panels_in_high_dimension_share_one_projection(self):
        run = film(n=20, d=5)
        figure = figures.small_multiples(run, times=[0, 0.1])
        camera = pictures._shared_camera(run, np.array([0, 1]), None)
        np.testing.assert_allclose(camera.axes.T @ camera.axes, np.eye(3), atol=1e-12)
        for k in (0, 1):
            drawn = np.concatenate([part[0] for part in drawn_discs(figure, k)])
            np.testing.assert_allclose(as_rows(drawn), as_rows(run.x[k] @ camera.axes[:, :2]), atol=1e-12)
        assert "of 5" in figure.get_supxlabel()

    @pytest.mark.parametrize(
        ("run", "settings", "sentence"),
        [
            (film(), {"columns": 0}, "`columns` must be a whole number, at least 1, but was 0"),
            (film(), {"times": [np.nan]}, "`times` must be finite, but was [nan]"),
            (film(), {"times": []}, "`times` must be a list of times, but was of shape (0,)"),
        ],
    )
    def test_bad_input(self, run, settings, sentence):
        with pytest.raises(InputError) as error:
            figures.small_multiples(run, **settings)
        assert str(error.value) == sentence

    def test_a_run_without_snapshots(self):
        empty = Trajectory(
            ts=np.zeros(1),
            x=np.zeros((0, 4, 2)),
            weights=np.full(4, 0.25),
            snapshot_ts=np.zeros(0),
            measured={},
            stats={},
            inputs={},
            status="",
            complete=True,
        )
        with pytest.raises(InputError, match="`trajectory` must hold at least one snapshot, but was without"):
            figures.small_multiples(empty)


class TestCurves:
    def test_values_are_drawn_and_logarithmic_axes_drop_what_they_cannot_show(self):
        ts, y = np.array([0.0, 1, 2, 3, 4]), np.array([1.0, 0.0, -1.0, 2.0, np.nan])
        kept = {"": [0, 1, 2, 3], "x": [1, 2, 3], "y": [0, 3], "xy": [3]}
        for log, index in kept.items():
            figure = figures.curves(ts, {"y": y}, log=log)
            ax = figure.axes[0]
            np.testing.assert_array_equal(ax.get_lines()[0].get_xydata(), np.stack([ts, y], 1)[index])
            assert (ax.get_xscale() == "log", ax.get_yscale() == "log") == ("x" in log, "y" in log)
            pixels(figure)

    def test_nothing_positive_is_an_empty_picture_not_a_crash(self):
        figure = figures.curves([1, 2], {"zero": [0, 0], "minus": [-1, -1]}, log="y")
        assert all(len(line.get_xdata()) == 0 for line in figure.axes[0].get_lines())
        pixels(figure)

    def test_eight_lines_differ_in_colour_and_in_dashes_predictions_are_thin_and_dark(self):
        ts = np.linspace(0, 1, 30)
        figure = figures.curves(
            ts, {str(k): k + ts for k in range(8)}, predicted={"law": ts, "bound": 2 * ts}
        )
        lines = figure.axes[0].get_lines()
        assert len({line.get_color() for line in lines[:8]}) == 8
        assert len({str(line._dash_pattern) for line in lines[:8]}) == 8
        for line in lines[8:]:
            red, green, blue = to_rgb(line.get_color())
            assert red == green == blue < 0.5 and line.is_dashed()
            assert line.get_linewidth() < lines[0].get_linewidth()

    def test_legend_is_beside_the_data_in_the_order_of_the_ends(self):
        ts = np.linspace(0, 1, 30)
        figure = figures.curves(
            ts, {"down": 1 - ts, "up": ts}, "time", "size", predicted={"half": 0 * ts + 0.5}
        )
        pixels(figure)
        ax = figure.axes[0]
        assert [t.get_text() for t in ax.get_legend().get_texts()] == ["up", "half", "down"]
        legend, frame = ax.get_legend().get_window_extent(), ax.get_window_extent()
        assert legend.x0 >= frame.x1 and legend.x1 <= figure.bbox.x1
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("time", "size")

    @pytest.mark.parametrize(
        ("values", "settings", "sentence"),
        [
            ({"a": [1, 2, 3]}, {}, "`a` must have shape (2,), one value per time, but was of shape (3,)"),
            ({}, {}, "`values` must hold 1 to 8 curves, but was 0"),
            ({str(k): [1, 2] for k in range(9)}, {}, "`values` must hold 1 to 8 curves, but was 9"),
            ({"a": [1, 2]}, {"log": "z"}, '`log` must be "", "x", "y" or "xy", but was \'z\''),
            (
                {"a": [1, 2]},
                {"predicted": {str(k): [1, 2] for k in range(5)}},
                "`predicted` must hold at most 4 curves, but was 5",
            ),
        ],
    )
    def test_bad_input(self, values, settings, sentence):
        with pytest.raises(InputError) as error:
            figures.curves([0, 1], values, **settings)
        assert str(error.value) == sentence


class TestSave:
    @pytest.mark.parametrize(
        ("name", "magic"), [("a.png", b"\x89PNG\r\n"), ("b.pdf", b"%PDF-"), ("c.SVG", b"<?xml")]
    )
    def test_figures_by_extension_and_equal_figures_give_equal_files(self, tmp_path, name, magic):
        path = tmp_path / "new" / "directory" / name
        contents = set()
        for _ in range(2):
            assert figures.save(figures.curves([0, 1], {"a": [0, 1]}), path) == path
            contents.add(path.read_bytes())
        assert len(contents) == 1 and contents.pop().startswith(magic)
        assert os.listdir(path.parent) == [name]

    def test_animation_has_one_frame_per_snapshot_each_with_its_time(self, tmp_path):
        run = film()
        moving = figures.animation(run, colour=np.arange(12.0), fps=5)
        figures.save(moving, tmp_path / "a.gif")
        assert (tmp_path / "a.gif").read_bytes()[:4] == b"GIF8"
        with Image.open(tmp_path / "a.gif") as image:
            assert image.n_frames == len(run.snapshot_ts) and image.info["duration"] == 200
        ax = moving._fig.axes[0]
        assert ax.get_title() == "t = 10"
        (_, (at, _, _)) = drawn_discs(moving._fig)
        np.testing.assert_allclose(at.mean(0), [1, 0], atol=0.1)

    def test_a_failure_midway_leaves_what_was_there_and_nothing_else(self, tmp_path, monkeypatch):
        path = tmp_path / "a.png"
        path.write_bytes(b"before")

        def fails(self, part, **_):
            part.write_bytes(b"half")
            raise OSError("disk full")

        monkeypatch.setattr(Figure, "savefig", fails)
        for target in (path, tmp_path / "b.png"):
            with pytest.raises(OSError, match="disk full"):
                figures.save(Figure(), target)
        assert os.listdir(tmp_path) == ["a.png"] and path.read_bytes() == b"before"

    @pytest.mark.parametrize("name", ["a.jpg", "a", "a.gif"])
    def test_unknown_endings(self, tmp_path, name):
        with pytest.raises(InputError) as error:
            figures.save(Figure(), tmp_path / "x" / name)
        wanted = f"`path` must end in .png, .pdf or .svg for a figure, but was '{tmp_path}/x/{name}'"
        assert str(error.value) == wanted
        assert os.listdir(tmp_path) == []

    def test_endings_of_animations_and_mp4_without_ffmpeg(self, tmp_path, monkeypatch):
        moving = figures.animation(film(n=3, times=(0.0, 1.0)))
        with pytest.raises(InputError, match=r"`path` must end in .gif or .mp4 for an animation, but was"):
            figures.save(moving, tmp_path / "a.png")
        monkeypatch.setattr(type(writers), "is_available", lambda self, name: False)
        with pytest.raises(InputError, match=r"ffmpeg is not installed, but was .*; install ffmpeg"):
            figures.save(moving, tmp_path / "a.mp4")
        monkeypatch.undo()
        figures.save(moving, tmp_path / "a.gif")  # a film that was never drawn warns when it is deleted

    def test_other_things_cannot_be_saved(self, tmp_path):
        with pytest.raises(InputError, match="`drawing` must be a Figure or an Animation, but was int"):
            figures.save(3, tmp_path / "a.png")  # pyright: ignore[reportArgumentType]
        with pytest.raises(InputError, match="`fps` must be positive and finite, but was 0"):
            figures.animation(film(), fps=0)


def test_no_window_system_is_touched():
    sources = sorted(Path(figures.__file__).parent.glob("*.py"))
    assert len(sources) > 4
    assert not any("pyplot" in source.read_text() for source in sources)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: figures.snapshot(np.eye(2)), "`tokens` must be a Tokens, but was ndarray"),
        (lambda: figures.small_multiples(None), "`trajectory` must be a Trajectory, but was NoneType"),
        (lambda: figures.animation("run"), "`trajectory` must be a Trajectory, but was str"),
        (lambda: figures.save(figures.snapshot(tkf.Tokens(np.eye(2))), None), "`path` must be a path"),
        (lambda: figures.is_film(3), "`path` must be a path, but was 3"),
        (lambda: tkf.order_parameter(np.eye(2)), "`tokens` must be a Tokens, but was ndarray"),
    ],
)
def test_other_things_than_tokens_and_runs_are_refused(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()
