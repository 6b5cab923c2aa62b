#!/bin/sh
# Release checks: the wheel on every Python that is here with the oldest and the newest dependencies
# that it allows, uvx, and the types as mypy and pyright see them in an installed package.
set -eu
tools=$(cd "${BIN:-.venv/bin}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1577836800}
"$tools/python" -m build --quiet --no-isolation --outdir "$work/dist" .
wheel=$(ls "$work"/dist/*.whl)
"$tools/python" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet --disable-pip-version-check uv pyright
uv="$work/tools/bin/uv"
tried=0
for version in 3.10 3.11 3.12 3.13; do
    python=$(command -v "python$version") && "$python" -c '' 2>/dev/null ||
        { echo "smoke-all: python$version is not here: skipped"; continue; }
    for resolution in lowest-direct highest; do
        "$uv" venv --quiet --clear --python "$python" "$work/venv"
        "$uv" pip install --quiet --python "$work/venv/bin/python" --resolution "$resolution" \
            "$wheel[lint]"
        "$work/venv/bin/tpuctl" --version
        "$work/venv/bin/tpuctl" doctor --json >"$work/doctor.json"
        "$work/venv/bin/tpuctl" types v5e-8 >/dev/null
        (cd "$work" && printf 'import jax\njax.tree_map\n' >old.py && venv/bin/tpuctl lint old.py --fix >/dev/null)
        echo "smoke-all: Python $version, $resolution: passed"
        tried=$((tried + 1))
    done
done
test "$tried" -gt 0 || { echo "smoke-all: no Python could be tried"; exit 1; }
# A hosted notebook keeps every package that it has.
for name in colab colab-tpu kaggle kaggle-tpu; do
    "$tools/python" - "$name" >"$work/has.txt" <<'END'
import json, sys
known = json.load(open("tests/published_environments.json"))[sys.argv[1]]["packages"]
print("\n".join(f"{package}=={version}" for package, version in known.items()))
END
    "$uv" venv --quiet --clear --seed "$work/venv"
    "$uv" pip install --quiet --python "$work/venv/bin/python" -r "$work/has.txt"
    "$uv" pip freeze --python "$work/venv/bin/python" >"$work/before.txt"
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
    "$uv" pip freeze --python "$work/venv/bin/python" >"$work/after.txt"
    if grep -vxFf "$work/after.txt" "$work/before.txt"; then
        echo "smoke-all: pip replaced a package of $name"; exit 1
    fi
    "$work/venv/bin/tpuctl" doctor --json >"$work/doctor.json"
    "$work/venv/bin/tpuctl" doctor --provider kaggle >/dev/null 2>"$work/login.txt" || grep -qi "log" "$work/login.txt"
    echo "smoke-all: like $name: passed"
done
"$uv" tool run --from "$wheel" tpuctl doctor --json >"$work/uvx.json"
echo "smoke-all: uvx: passed"
cp tests/typed_program.py "$work/program.py"
"$uv" pip install --quiet --python "$work/venv/bin/python" mypy
cd "$work"
"$work/venv/bin/python" -m mypy --strict program.py
sed "s/runtime: str/runtime: bytes/" program.py >wrong.py
if "$work/venv/bin/python" -m mypy --strict wrong.py >/dev/null; then
    echo "smoke-all: mypy sees no types"; exit 1
fi
if "$work/tools/bin/pyright" --version >/dev/null 2>&1; then
    "$work/tools/bin/pyright" --pythonpath "$work/venv/bin/python" program.py
    if "$work/tools/bin/pyright" --pythonpath "$work/venv/bin/python" wrong.py >/dev/null; then
        echo "smoke-all: pyright sees no types"; exit 1
    fi
    echo "smoke-all: pyright: passed"
else
    echo "smoke-all: pyright cannot be installed here (it comes from npm): skipped"
fi
echo "smoke-all: passed"
