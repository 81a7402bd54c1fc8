"""Graph: ops checked against a spec, their draws, and which of them share a region."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpuload as gl
from gpuload import ops
from gpuload.errors import SpecError
from gpuload.graph.graph import compile_ops, image_sizes
from gpuload.ops import forms, places, traits
from gpuload.ops.base import Op
from gpuload.ragged import Ragged
from gpuload.spec import Field, Spec
from gpuload.testing.ops import uniform

FILES = Field("image", np.dtype(np.uint8), (None,), encoded=True)
MASKS = Field("mask", np.dtype(np.uint8), (None,), encoded=True)
BOTH = ("image", "mask")
LABEL = uniform(np.int32, name="label")
SIZES = np.array([[40, 60], [37, 33], [100, 50]], np.int32)


def drawn(graph, records=(0, 1, 2)):
    return graph.draw(
        seed=1, epoch=2, records=np.array(records), sizes=dict.fromkeys(graph.touched, SIZES)
    )


@pytest.mark.parametrize(
    ("chain", "crops"),
    [
        ([ops.Decode(), ops.RandomResizedCrop(8)], (1, None)),
        ([ops.Decode(), ops.RandomCrop(8)], (1, None)),
        ([ops.Decode(), ops.RandomCrop(8, pad=2)], (1, None)),
        ([ops.Decode(), ops.OneHot(3), ops.RandomCrop(8)], (2, None, None)),
        ([ops.Decode(), ops.RandomFlip(), ops.RandomCrop(8)], (None, None, None)),
        ([ops.Decode(), ops.Resize(20, 20), ops.RandomCrop(8)], (None, None, None)),
        ([ops.Decode(), ops.RandomCrop(20), ops.RandomCrop(8)], (1, None, None)),
        ([ops.Decode(on=BOTH), ops.RandomCrop(8, on=BOTH)], (1, None)),
        ([ops.Decode(), ops.Decode("GRAY", on="mask"), ops.RandomCrop(8, on=BOTH)], (2, 2, None)),
        ([ops.Decode(on=BOTH), ops.RandomCrop(8)], (None, None)),  # the mask is needed whole
        (
            [
                ops.Decode(),
                ops.Decode(on="mask"),
                ops.RandomFlip(on="mask"),
                ops.RandomCrop(8, on=BOTH),
            ],
            (None,) * 4,
        ),
    ],
)
def test_a_crop_gives_its_region_to_the_decode_before_it(chain, crops):
    assert compile_ops(Spec((FILES, MASKS, LABEL)), chain).crops == crops


CROP = ops.RandomResizedCrop(8, 8)
PAD = ops.Pad(margin=2)
SIZED = (ops.Decode(on=BOTH), ops.RandomResizedCrop(8, 8, on=BOTH))
BLUR = ops.Dali("gaussian_blur", sigma=1.5)


def in_cupy(image):
    return image


@pytest.mark.parametrize(
    ("chain", "places"),
    [
        ([ops.Decode(), CROP], (0, 1)),
        ([ops.Decode()], (0,)),
        ([ops.Decode(), ops.ColorJitter(0.5)], (0,)),
        ([ops.Decode(), CROP, ops.RandomFlip(), ops.Normalize(9, 3)], (0, 1, 2)),
        (
            [ops.Decode(), CROP, ops.Normalize(9, 3), ops.RandomFlip()],
            (0, 1),
        ),  # of floats, four times the bytes
        ([ops.Decode(), CROP, ops.ColorJitter(0.5), ops.RandomFlip()], (0, 1)),
        ([ops.Decode(), CROP, ops.CenterCrop(4, 4), ops.RandomFlip()], (0, 1, 2, 3)),
        ([ops.Decode(), CROP, ops.Pad(margin=2)], (0, 1)),  # more bytes
        ([ops.Decode(), ops.RandomFlip(), ops.Resize(8, 8)], (0, 1, 2)),
        ([ops.Decode(), ops.OneHot(3), ops.Resize(8, 8)], (0, 2)),
        ([ops.Decode(size=(8, 8)), ops.RandomFlip(), ops.Normalize(9, 3)], (0, 1)),
        ([ops.Decode(on=BOTH), ops.RandomResizedCrop(8, 8, on=BOTH), ops.Normalize(9, 3)], (0, 1)),
        (
            [ops.Decode(on=BOTH), CROP, ops.RandomFlip(on="mask")],
            (0, 1),
        ),  # no size for the mask: decoding alone
        (
            [ops.Decode(), ops.Copy("image", to="view"), CROP, ops.Resize(4, 4, on="view")],
            (0, 1, 2, 3),
        ),
        # A border by itself makes more bytes; with a crop behind it, or a flip between them, it
        # does not.
        ([ops.Decode(), CROP, PAD, ops.RandomCrop(8), ops.Normalize(9, 3)], (0, 1, 2, 3)),
        ([ops.Decode(), CROP, PAD, ops.RandomFlip(), ops.CenterCrop(8, 8), PAD], (0, 1, 2, 3, 4)),
        ([ops.Decode(), CROP, PAD, ops.RandomCrop(9)], (0, 1)),
        ([ops.Decode(), CROP, PAD, ops.ColorJitter(0.5), ops.RandomCrop(8)], (0, 1)),
        ([ops.Decode(), CROP, PAD, ops.Copy("image", to="view"), ops.RandomCrop(8)], (0, 1)),
        ([ops.Decode(), CROP, ops.Pad(margin=2, fill=(9, 8, 7)), ops.RandomCrop(8)], (0, 1, 2, 3)),
        ([ops.Decode(), CROP, ops.RandomCrop(8, pad=2, fill=(9, 8, 7))], (0, 1, 2)),
        ([*SIZED, ops.RandomFlip(on=BOTH), ops.Normalize(9, 3)], (0, 1, 2)),
        ([*SIZED, ops.RandomCrop(4, on=BOTH), ops.RandomFlip()], (0, 1, 2, 3)),
        (
            [*SIZED, ops.ColorJitter(0.5), ops.RandomFlip(on=BOTH), ops.RandomFlip(on="mask")],
            (0, 1),
        ),
        ([*SIZED, ops.Pad(margin=2, on=BOTH), ops.RandomCrop(8, on=BOTH)], (0, 1, 2, 3)),
        (
            [*SIZED, ops.Pad(margin=2, on=BOTH), ops.RandomCrop(8)],
            (0, 1),
        ),  # the mask would be larger
        (
            [*SIZED, ops.Pad(margin=2), ops.RandomCrop(8), ops.RandomFlip(on="mask")],
            (0, 1, 2, 3, 4),
        ),
        ([ops.Decode(), BLUR, CROP], (0,)),
        ([ops.Decode(), CROP, BLUR, ops.RandomFlip()], (0, 1)),
        ([ops.Decode(), ops.Python(in_cupy, out={}, on_device=True), CROP], (0,)),
        ([ops.Decode(), ops.Python(in_cupy, out={}), CROP], (0, 1, 2)),
        # An operator of DALI on one image: the other one comes to its size, unless one op gives
        # both theirs.
        ([ops.Decode(on=BOTH), BLUR, CROP, ops.Resize(8, 8, on="mask")], (0, 3)),
        ([ops.Decode(on=BOTH), BLUR, ops.RandomResizedCrop(8, 8, on=BOTH)], (0,)),
        ([ops.OneHot(3)], ()),
    ],
)
def test_the_ops_to_one_size_are_those_up_to_the_op_that_gives_it(chain, places):
    assert compile_ops(Spec((FILES, MASKS, LABEL)), chain).to_one_size == places


def test_a_box_becomes_the_region_and_is_all_of_it():
    plain = compile_ops(Spec((FILES,)), [ops.Decode(), ops.RandomFlip(0), ops.RandomResizedCrop(8)])
    graph = compile_ops(Spec((FILES,)), [ops.Decode(), ops.RandomResizedCrop(8)])

    region, rest = drawn(graph)

    box = drawn(plain)[2]
    assert rest["start"].tolist() == [[0, 0]] * 3
    assert all(
        (draw[name] == box[name]).all()
        for draw, name in ((region, "start"), (region, "shape"), (rest, "shape"))
    )


def test_a_region_has_two_pixels_along_each_side_where_the_image_has_them():
    graph = compile_ops(Spec((FILES,)), [ops.Decode(), ops.RandomCrop(1)])
    sizes = {"image": np.array([[1, 1], [2, 9], [9, 1]] * 50, np.int32)}

    region, rest = graph.draw(seed=1, epoch=2, records=np.arange(150), sizes=sizes)

    start, shape = region["start"], region["shape"]
    assert (shape == np.minimum(sizes["image"], 2)).all()
    assert (start >= 0).all()
    assert (start + shape <= sizes["image"]).all()
    assert set(rest["start"].ravel()) == {0, 1}


@given(st.tuples(st.integers(1, 50), st.integers(1, 50)), st.integers(0, 60), st.data())
def test_the_region_of_a_crop_is_the_part_of_the_image_in_its_window(window, pad, data):
    size = np.array([[data.draw(st.integers(max(1, n - 2 * pad), 60)) for n in window]], np.int32)
    op = ops.RandomCrop(*window, pad=pad, fill=7)
    draw = op.draw(np.array([data.draw(st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2))]), size)
    image = np.random.default_rng(0).integers(0, 256, (*size[0], 3), dtype=np.uint8)

    region = op.traits.regional.part(draw, size)

    (top, left), (height, width) = region["start"][0], region["shape"][0]
    assert region["start"].dtype == region["shape"].dtype == np.int32
    assert 0 <= top < top + height <= size[0, 0]
    assert 0 <= left < left + width <= size[0, 1]
    assert height <= window[0] or height == 1
    part = image[top : top + height, left : left + width]
    within = {name: values[0] for name, values in op.traits.regional.within(draw, region).items()}
    whole = {name: values[0] for name, values in draw.items()}
    np.testing.assert_array_equal(op.array(np, part, within), op.array(np, image, whole))


def test_regions_change_no_draw_of_a_later_op():
    chain = [ops.RandomResizedCrop(30, 20), ops.RandomCrop(8), ops.RandomFlip()]
    spec = Spec((uniform(np.uint8, 40, 60, 3),))
    sizes = {"image": np.broadcast_to(SIZES[:1], (3, 2))}
    files = compile_ops(Spec((FILES,)), [ops.Decode(), *chain])

    with_region = files.draw(seed=1, epoch=2, records=np.arange(3), sizes=sizes)[2:]

    without = compile_ops(spec, chain).draw(seed=1, epoch=2, records=np.arange(3), sizes=sizes)[1:]
    for draw, other in zip(with_region, without, strict=True):
        assert all((draw[name] == other[name]).all() for name in draw)


def test_the_draws_of_no_records_have_the_names_and_kinds_of_all():
    graph = compile_ops(
        Spec((FILES, LABEL)), [ops.Decode(), ops.RandomCrop(8, pad=1), ops.Resize(shorter=6)]
    )

    for empty, draw in zip(graph.empty_draws, drawn(graph), strict=True):
        kinds = {name: (values.dtype, values.shape[1:]) for name, values in draw.items()}
        assert {name: (values.dtype, values.shape[1:]) for name, values in empty.items()} == kinds


def test_only_what_the_wanted_fields_need_is_kept_with_its_draws():
    spec = Spec((uniform(np.uint8, 40, 60, 3), uniform(np.uint8, 40, 60, 1, name="mask"), LABEL))
    chain = [ops.RandomFlip(on="mask"), ops.OneHot(9), ops.RandomFlip(on=BOTH), ops.RandomCrop(8)]
    graph = compile_ops(spec, chain)

    only = graph.only(["image"])

    assert only.ops == (chain[0], chain[2], chain[3])  # the mask shares an op with the image
    assert only.streams == (graph.streams[0], graph.streams[2], graph.streams[3])
    assert graph.only(["label"]).ops == (chain[1],)


def test_of_the_copies_of_a_field_only_those_that_are_wanted_are_gone_on_with():
    copies = ops.Copy("image", to=("first", "second"))
    chain = [
        ops.RandomCrop(8),
        copies,
        ops.RandomFlip(on="second"),
        ops.RandomCrop(4, on="first"),
        ops.RandomFlip(),
    ]
    graph = compile_ops(Spec((uniform(np.uint8, 40, 60, 3), LABEL)), chain)

    assert graph.only(["first"]).ops == (chain[0], copies, chain[3], chain[4])
    assert graph.only(["second", "label"]).ops == (chain[0], copies, chain[2], chain[4])


def test_sizes_and_scans_of_encoded_images_are_read_in_ragged_values_too():
    file = np.frombuffer(PNG, np.uint8)

    sizes = image_sizes(FILES, Ragged.of([file, file], np.dtype(np.uint8)), 2)

    assert sizes[:, :3].tolist() == [[1, 2, 1], [1, 2, 1]]


def test_an_op_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"ops\[1\] is <class"):
        compile_ops(Spec((LABEL,)), [ops.OneHot(3), Op])


@pytest.mark.parametrize(
    "chain", [ops.OneHot(3), None, "OneHot", (op for op in [ops.OneHot(3)]), {"a": ops.OneHot(3)}]
)
def test_ops_that_are_no_list_are_refused_when_the_loader_is_made(chain):
    with pytest.raises(SpecError, match=r"ops is .*\n.*a list of ops") as caught:
        gl.Loader(gl.arrays(label=np.arange(3)), batch_size=1, ops=chain, device="cpu")

    assert caught.value.remedy.startswith("write ops=[")


@pytest.mark.parametrize(
    ("entry", "remedy"),
    [
        (ops.Cast, "gl.ops.Cast(...)"),
        (np.flip, "gl.ops.Python(flip)"),
        ("Decode", "gl.ops.Decode(...)"),
        ("Decode, Cast", "gl.ops.RandomFlip()"),
    ],
)
def test_of_what_is_no_op_the_remedy_is_how_to_make_one_of_it(entry, remedy):
    with pytest.raises(SpecError, match=r"ops\[0\] is") as caught:
        compile_ops(Spec((LABEL,)), [entry])

    assert remedy in caught.value.remedy


def test_an_op_without_on_says_that_it_acts_on_the_image_alone():
    fields = Spec((LABEL, uniform(np.uint8, 9, 9, 1, name="mask")))

    with pytest.raises(SpecError, match="which of the fields") as caught:
        compile_ops(fields, [ops.RandomFlip()])

    assert "acts on the field 'image' alone" in caught.value.cause
    assert "a mask beside the image" in " ".join((Op.__doc__ or "").lower().split())


PNG = bytes.fromhex(  # of 2 x 1 pixels
    "89504e470d0a1a0a0000000d49484452000000020000000108020000007b40e8dd0000000f49444154789c636064626661650300"
    "003f001621bad4540000000049454e44ae426082"
)


@pytest.mark.parametrize(
    ("member", "value", "place"),
    [
        ("pointwise", True, "in traits, by Arithmetic(pointwise=)"),
        ("moves_pixels", True, "in traits, by Geometric()"),
        ("codec", True, "in traits, by FileCodec()"),
        ("array_fields", lambda self, *rest: {}, "in traits, by Joint(array_fields=)"),
        ("check", lambda self, xp, x: x > 3, "in traits, by ValueCheck(rows=)"),
        ("fold", lambda self, walk, draw: walk, "in forms(), by Forms(fold=)"),
    ],
)
def test_a_member_that_has_its_place_in_traits_or_forms_is_refused(member, value, place):
    with pytest.raises(SpecError, match=f"class Own: its member '{member}'") as raised:
        type("Own", (Op,), {member: value})

    assert place in raised.value.cause


def test_a_member_of_a_class_beside_op_is_refused_and_an_argument_may_have_its_name():
    class Table:
        pointwise = True

    with pytest.raises(SpecError, match="pointwise"):
        type("Own", (Table, Op), {})

    @dataclass(frozen=True)
    class Grouped(Op):
        group: int = 3

    assert Grouped(5).group == 5


def test_the_places_of_members_are_arguments_of_traits_and_forms():
    for place in places.PLACES:
        name, _, argument = place.removesuffix("=)").partition("(")
        owner = getattr(traits, name, None) or getattr(forms, name)
        names = getattr(owner, "_fields", None) or [field.name for field in fields(owner)]
        assert argument in ("", ")", *names)
