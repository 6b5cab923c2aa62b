#!/bin/sh
# Build the wheel, install it alone in a clean environment, run it without any development tool.
set -eu
python=${PYTHON:-python3}
tools=$(cd "${BIN:-.venv/bin}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$tools/python" -m build --quiet --wheel --no-isolation --outdir "$work/dist" .
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    -c constraints.txt "$work"/dist/*.whl
cd "$work"
run() {
    echo "$ tpuctl $*" >&2
    "$work/venv/bin/tpuctl" "$@"
}
run --version
run --help >help.txt
grep -q doctor help.txt
run doctor --json >doctor.json
"$work/venv/bin/python" -c 'import json; assert json.load(open("doctor.json"))["schema"] == "tpuctl/1"'
run templates list
run templates new images "$work/copy"
test -s "$work/copy/images.py"
# What is not installed is one error that names the extra, and exit code 1.
mkdir photographs
if run data presize photographs shards; then exit 1; elif [ $? -ne 1 ]; then exit 1; fi
printf 'import jax\nprint(jax.host_count())\n' >old.py
run lint old.py
if run lint old.py --fix; then exit 1; elif [ $? -ne 1 ]; then exit 1; fi
echo "smoke: passed"
