#!/usr/bin/env bash
# Installs gpuload into an image; each RUN of the Dockerfile is one call of this script.
#
#   install.sh user                           the user that programs run as
#   install.sh wheel FOLDER                   gpuload itself as a wheel; needs a compiler, and gets one
#   install.sh MODE packages                  everything but gpuload
#   install.sh cuda12 plugin FOLDER           DALI's TensorFlow plugin as a wheel; needs a compiler, and gets one
#   install.sh MODE gpuload FOLDER [FOLDER]   the wheels of these folders, and a look whether it works
#
# MODE    cpu, cuda12          on an image of Python: that extra of pyproject.toml, in the versions of constraints.txt
#         tensorflow, pytorch  on NVIDIA's container: what it lacks. Nothing that it brings is changed, which is checked.
# PYTHON  the Python that all of it is for; python3 where it is not set
#
# pip asks for packages wherever it is set up to; PIP_NO_INDEX=1 keeps it from asking at all.

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
user=gpuload user_id=10001

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

refuse() {
    printf 'install.sh: %s\n' "$@" >&2
    exit 1
}

# Beside this script in an image, where only what packages depend on lies; in the folder above in a checkout.
beside() {
    local folder
    for folder in "$here" "$here/.."; do
        if [ -f "$folder/$1" ]; then
            printf '%s\n' "$folder/$1"
            return
        fi
    done
    refuse "there is no $1 in $here or above"
}

packages() {
    "$python" "$here/packages.py" "$@"
}

pip_install() {
    "$python" -m pip install "$@"
}

# What was there before anything was added, kept in the image: `packages.py unchanged FILE` asks again at any time.
noted() {
    "$python" -c 'import sys; print(f"{sys.prefix}/share/gpuload/installed.json")'
}

add_user() {
    id -u "$user" >/dev/null 2>&1 || useradd --uid "$user_id" --create-home --shell /bin/bash "$user"
}

need_compiler() {
    if ! command -v g++ >/dev/null; then
        apt-get update
        apt-get install --yes --no-install-recommends g++
        rm -rf /var/lib/apt/lists/*
    fi
}

build_wheel() {
    local folder=$1 work name
    work=$(mktemp -d)
    need_compiler
    packages requirements build >"$work/requirements"
    pip_install --constraint "$(beside constraints.txt)" --requirement "$work/requirements"
    mkdir "$work/source"  # setuptools writes beside the sources, which may be read-only
    mkdir "$work/source/examples" "$work/source/benchmarks"
    for name in gpuload gpuload_command.py examples/gpuload_demo benchmarks/gpuload_peers \
        pyproject.toml setup.py MANIFEST.in README.md LICENSE; do
        cp -R "$here/../$name" "$work/source/$name"
    done
    rm -f "$work"/source/gpuload/core/_native*  # of the machine that builds
    GPULOAD_CORE=1 "$python" -m pip wheel --no-deps --no-build-isolation --wheel-dir "$folder" "$work/source"
    rm -rf "$work"
}

# The extra as it stands in pyproject.toml: gpuload itself is not needed for that, so that a change of it does not undo
# this layer.
extra_packages() {
    local list
    list=$(mktemp)
    packages requirements "$1" >"$list"
    pip_install --constraint "$(beside constraints.txt)" --requirement "$list"
    rm -f "$list"
}

missing_packages() {
    local framework=$1 work
    work=$(mktemp -d)
    packages record "$framework" "$(noted)"
    packages missing "$(noted)" >"$work/missing"
    packages constraints "$(noted)" >"$work/constraints"
    if [ -s "$work/missing" ]; then
        # The container's Python belongs to its system, and newer ones say so (PEP 668); packages are added all the same,
        # as the container's makers did.
        PIP_BREAK_SYSTEM_PACKAGES=1 pip_install --constraint "$work/constraints" --requirement "$work/missing"
    fi
    rm -rf "$work"
    packages unchanged "$(noted)"
}

# The plugin is compiled for the TensorFlow that is installed, so that it cannot be built in isolation. It ships as
# source, and its build needs these three packages, g++, and CUDA's headers. It looks for those in /usr/local/cuda; here
# they are part of the packages that TensorFlow brings.
build_plugin() {
    local folder=$1 list headers
    need_compiler
    list=$(mktemp)
    packages requirements tf-plugin | grep tf-plugin >"$list"
    pip_install --constraint "$(beside constraints.txt)" packaging setuptools wheel
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
    CPATH=$headers/cuda_runtime/include:$headers/cuda_nvcc/include "$python" -m pip wheel --no-deps --no-build-isolation \
        --constraint "$(beside constraints.txt)" --wheel-dir "$folder" --requirement "$list"
    rm -f "$list"
}

install_gpuload() {
    local mode=$1 folder wheels=()
    shift
    for folder in "$@"; do
        wheels+=("$folder"/*.whl)
    done
    PIP_BREAK_SYSTEM_PACKAGES=1 pip_install --no-index --no-deps "${wheels[@]}"
    case $mode in
        cpu | cuda12) "$python" -m pip check ;;
        *) packages unchanged "$(noted)" ;;
    esac
    "$python" -I -m gpuload health --device cpu  # not the gpuload of the folder where this was started
}

case "${1-} ${2-}" in
    "user ") add_user ;;
    "wheel "?*) build_wheel "$2" ;;
    "cpu packages" | "cuda12 packages") extra_packages "$1" ;;
    "tensorflow packages") missing_packages tensorflow ;;
    "pytorch packages") missing_packages torch ;;
    "cuda12 plugin") build_plugin "${3:?a folder for the wheel}" ;;
    "cpu gpuload" | "cuda12 gpuload" | "tensorflow gpuload" | "pytorch gpuload")
        mode=$1 _=${3:?a folder of wheels}
        shift 2
        install_gpuload "$mode" "$@"
        ;;
    *) refuse "it does not know '$*'" "read its first lines" ;;
esac
