"""gpuload doctor: what is broken is a line with a remedy, and never the end of the report."""

import json
import signal

import numpy as np
import pytest

import gpuload as gl
from gpuload.cli import doctor, main
from gpuload.cli.doctor import ABSENT, OK, PROBLEM, Finding, Package
from gpuload.executors import trials
from gpuload.ops.value.decode import decoder_on_gpu


def plant(folder, monkeypatch, files):
    """Put files into a folder that this process and its children import from first."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))


def package(module):
    return Package(module, module, (module,), "a test", f'pip install "{module}"')


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("", ""),
        (
            "raise ImportError('libnothing.so: cannot open')",
            "ImportError: libnothing.so: cannot open",
        ),
        ("import os; os.abort()", f"it ended the process ({signal.SIGABRT.name})"),
        ("import sys; sys.exit(3)", "exit status 3"),
    ],
)
def test_a_package_that_fails_when_it_is_imported_is_a_finding(code, fault, tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, {"planted_package/__init__.py": code})

    assert doctor.import_fault(package("planted_package")) == fault


def test_a_package_that_hangs_is_a_finding(tmp_path, monkeypatch):
    plant(tmp_path, monkeypatch, {"planted_package/__init__.py": "import time; time.sleep(60)"})
    monkeypatch.setattr(doctor, "CHILD_S", 1)

    assert doctor.import_fault(package("planted_package")) == "it took more than 1 s"


def test_packages_for_two_versions_of_cuda_are_named_with_the_remedy(tmp_path, monkeypatch):
    distributions = {"nvidia-dali-cuda120": "2.4.0", "cupy-cuda13x": "14.2.0"}
    monkeypatch.setattr(
        doctor, "versions", lambda names: {n: v for n, v in distributions.items() if n in names}
    )

    ((subject, about, remedy),) = doctor.misfits()

    assert subject == "CUDA"
    assert "CUDA 12: nvidia-dali-cuda120; CUDA 13: cupy-cuda13x" in about
    assert "pip uninstall nvidia-dali-cuda120 cupy-cuda13x" in remedy


@pytest.mark.parametrize(
    ("cuda", "distributions", "remedy"),
    [
        (0, {"tensorflow-cpu": "2.21.0"}, ""),
        (
            12080,
            {"tensorflow-cpu": "2.21.0"},
            'pip uninstall tensorflow-cpu, then pip install "gpuload[cuda12]"',
        ),
        (12080, {"tensorflow": "2.21.0"}, 'pip install "gpuload[cuda12]"'),
        (
            13000,
            {"tensorflow": "2.21.0"},
            'pip install "gpuload[cuda13]", or "gpuload[cuda12]" for TensorFlow',
        ),
    ],
)
def test_cupy_is_recommended_where_it_is_of_use_and_in_the_place_of_the_builds_for_a_cpu(
    cuda, distributions, remedy, monkeypatch
):
    monkeypatch.setattr(
        doctor, "versions", lambda names: {n: v for n, v in distributions.items() if n in names}
    )
    monkeypatch.setattr(doctor, "DRIVER", "/" if cuda else "/no/such/file")
    monkeypatch.setattr(doctor.driver, "cuda_version", lambda: cuda)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor.signalsafe, "is_installed", lambda name: False)

    (finding,) = [finding for finding in doctor._packages() if finding.subject == "CuPy"]

    assert finding.remedy == remedy


def test_two_distributions_of_a_package_spoil_each_other(tmp_path, monkeypatch):
    files = {
        f"{name}-14.2.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 14.2.0\n"
        for name in ("cupy_cuda12x", "cupy")
    }
    plant(tmp_path, monkeypatch, files)

    problems = {subject: about for subject, about, _ in doctor.misfits()}

    assert "cupy-cuda12x and cupy lie in one folder" in problems["CuPy"]


def test_a_codec_that_ends_the_process_is_one_line_and_the_others_are_tried(monkeypatch):
    program = (
        "import json, os, sys\n"
        "for number in range(int(sys.argv[3]), 4):\n"
        "    if number == 2: os.abort()\n"
        "    print(json.dumps([f'sample {number}', 'ok', '']), flush=True)\n"
    )
    monkeypatch.setattr(doctor, "TRY_IMAGES", program)

    results = list(
        doctor.decode_samples("dali", "gpu:0", [f"sample {number}" for number in range(4)])
    )

    assert [state for _, state, _ in results] == [OK, OK, PROBLEM, OK]
    assert results[2] == ("sample 2", PROBLEM, "it ended the process (SIGABRT)")


def test_each_format_is_decoded_whole_and_by_region_in_a_process_of_its_own():
    pytest.importorskip("PIL.Image")
    titles = [
        f"{title}, {part}"
        for title, _ in doctor.parity_images.samples()
        for part in ("whole", "region")
    ]

    results = list(doctor.decode_samples("array", "cpu", titles))

    assert [title for title, _, _ in results] == titles
    assert {"JPEG 4:2:0, whole", "JPEG 4:2:0, region", "PNG, whole"} < {
        title for title, state, _ in results if state == OK
    }
    assert [result for result in results if result[1] == PROBLEM] == []


def test_it_says_where_images_can_be_decoded(monkeypatch):
    monkeypatch.setattr(doctor.device, "gpu_problem", lambda number: None)
    monkeypatch.setattr(doctor.device, "num_gpus", lambda: 1)
    monkeypatch.setattr(doctor.threads, "num_cores_for_gpu", lambda num_gpus: 16)
    monkeypatch.setattr(doctor.native, "codec", lambda: object())
    monkeypatch.setattr(doctor.signalsafe, "is_installed", lambda name: True)

    def abouts() -> dict[str, str]:
        return {finding.subject: finding.about for finding in doctor._decoding()}

    assert list(abouts()) == [
        "decoding on the host",
        "decoding on a GPU",
        'executor="auto" on a GPU',
    ]
    assert "decoded on the host" in abouts()['executor="auto" on a GPU']
    assert "there are 16 cores for each GPU" in abouts()['executor="auto" on a GPU']
    monkeypatch.setattr(doctor.decode, "codec", lambda: None)
    assert "decoded on the device" in abouts()['executor="auto" on a GPU']
    monkeypatch.setattr(doctor.signalsafe, "is_installed", lambda name: False)
    assert 'executor="auto" on a GPU' not in abouts()
    monkeypatch.setattr(doctor.decode, "codec", lambda: "pillow")
    assert (
        abouts()['executor="auto" on a GPU']
        == "has images decoded on the host: DALI is not installed"
    )


def test_a_place_to_decode_that_failed_is_a_problem_whose_remedy_names_the_other(monkeypatch):
    failure = trials.Failure("dali", "gpu", "PNG", False, "it is late")
    monkeypatch.setattr(trials, "load", lambda name, device: (failure,) if name == "dali" else ())
    monkeypatch.setattr(doctor.device, "gpu_problem", lambda number: None)
    monkeypatch.setattr(doctor.device, "num_gpus", lambda: 1)
    monkeypatch.setattr(doctor.signalsafe, "is_installed", lambda name: True)

    host, on_device, auto = doctor._decoding()

    assert (host.state, auto.state) == (OK, OK)
    assert (on_device.state, on_device.remedy) == (PROBLEM, 'write decode="host"')
    assert "fails at PNG: it is late" in on_device.about
    assert "decoded on the host: gpuload doctor found that dali on gpu fails at PNG" in auto.about


def test_the_report_names_what_is_absent_and_what_is_broken(tmp_path, monkeypatch, capsys):
    plant(
        tmp_path,
        monkeypatch,
        {"planted_package/__init__.py": "raise OSError('a library is missing')"},
    )
    monkeypatch.setattr(
        doctor, "PACKAGES", (package("planted_package"), package("no_such_package"))
    )
    monkeypatch.setattr(doctor.parity_images, "samples", lambda: iter(()))

    status = main(["doctor"])
    text = capsys.readouterr().out
    assert main(["doctor", "--json"]) == status == 1

    document = json.loads(capsys.readouterr().out)
    findings = [Finding(**fields) for fields in document["findings"]]
    assert document["num_problems"] == sum(finding.state == PROBLEM for finding in findings)
    by_subject = {finding.subject: finding for finding in findings}
    assert by_subject["planted_package"].state == PROBLEM
    assert "OSError: a library is missing" in by_subject["planted_package"].about
    assert by_subject["planted_package"].remedy
    assert by_subject["no_such_package"].state == ABSENT
    assert by_subject["no_such_package"].remedy == 'pip install "no_such_package"'
    assert by_subject["cores"].state == OK
    assert max(map(len, text.splitlines())) <= 80
    assert "PROBLEM planted_package: does not load: OSError: a library is missing" in text
    assert "->" in text


def test_the_decoder_of_a_card_gets_its_verdict_by_batches_of_jpegs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("nvidia.dali")
    monkeypatch.setenv("GPULOAD_CACHE", str(tmp_path))
    monkeypatch.delenv(trials.SWITCH, raising=False)
    monkeypatch.setattr(doctor, "NUM_JPEGS", 4)
    monkeypatch.setattr(doctor.device, "card_name", lambda place: "NVIDIA H100")
    doctor.try_decoder("cpu")  # DALI's decoder there; it prints a line, which the parent reads
    line = capsys.readouterr().out
    monkeypatch.setattr(
        doctor, "_child", lambda program, place: (0, f"DALI says hello\n{line}", "")
    )

    finding = doctor.try_card("gpu:0")

    decoder = decoder_on_gpu([gl.ops.Decode()])
    assert (finding.state, finding.about) == (
        OK,
        "4 JPEGs, 32 at a time, have the pixels of the CPU",
    )
    assert trials.load_verdict(decoder, "NVIDIA H100").is_good

    monkeypatch.setattr(doctor, "_child", lambda program, place: (-11, "", ""))
    finding = doctor.try_card("gpu:0")

    assert (finding.state, finding.about) == (PROBLEM, "it ended the process (SIGSEGV)")
    assert 'decode="host"' in finding.remedy
    assert trials.load_verdict(decoder, "NVIDIA H100") == trials.Verdict(False, finding.about)


def test_a_decoder_that_makes_other_pixels_is_a_problem(monkeypatch, capsys):
    pytest.importorskip("nvidia.dali")
    monkeypatch.setattr(doctor, "NUM_JPEGS", 4)
    from gpuload.executors.dali import DaliExecutor

    finish = DaliExecutor.finish

    def shifted(self):
        return {"image": [np.roll(image, 1, axis=1) for image in finish(self)["image"]]}

    monkeypatch.setattr(DaliExecutor, "finish", shifted)
    doctor.try_decoder("cpu")

    state, about = json.loads(capsys.readouterr().out)
    assert state == PROBLEM
    assert "values differ" in about
