#!/usr/bin/env python3
"""Delete the TPU on whose VM this runs, once its time is over.

tpuctl puts this file on a TPU that was created with --ttl or --max-usd. It needs nothing but
Python 3.8, asks the metadata server for a token, and goes by the clock of the service and by the
labels of the TPU. Only a TPU that carries this create id is ever deleted.

    guard.py --project P --zone Z --name N --create-id ID [--once]
"""

from __future__ import annotations

import argparse
import calendar
import email.utils
import json
import os
import random
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

METADATA = "http://metadata.google.internal"
API = "https://tpu.googleapis.com"
TTL_LABEL, ID_LABEL = "tpuctl-ttl-s", "tpuctl-create"
REPLY_S = 30
LONGEST_WAIT_S = 3600
AFTER_DELETE_S = 60
BACKOFF_S = (15, 30, 60, 120, 300)
# Every worker has a guard, in case one is broken; the others give worker 0 time to act first.
STAGGER_S = 30
MOST_STAGGERED = 10


def main(arguments: list[str] | None = None) -> int:
    """Look, wait, look again, for as long as this VM exists."""
    options = parse(arguments)
    failures = 0
    while True:
        try:
            wait_s, what = look(options)
            failures = 0
        # Whatever it is: without a guard the TPU would be billed forever.
        except Exception as error:
            wait_s = BACKOFF_S[min(failures, len(BACKOFF_S) - 1)] * random.uniform(0.5, 1)
            what = f"could not look: {type(error).__name__}: {error}"
            failures += 1
        say(f"{what}; next look in {wait_s:.0f} s")
        if options.once:
            return min(failures, 1)
        time.sleep(wait_s)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line; the addresses can be set from outside for practice and tests."""
    parser = argparse.ArgumentParser(description="Delete this VM's TPU once its time is over.")
    for name in ("--project", "--zone", "--name", "--create-id"):
        parser.add_argument(name, required=True)
    parser.add_argument("--api", default=os.environ.get("TPUCTL_GUARD_API", API))
    parser.add_argument("--metadata", default=os.environ.get("TPUCTL_GUARD_METADATA", METADATA))
    parser.add_argument("--once", action="store_true", help="look once and say what comes next")
    parser.set_defaults(first_seen=None)
    return parser.parse_args(arguments)


def look(options: argparse.Namespace) -> tuple[float, str]:
    """Look at the TPU and delete it when it is due: seconds to the next look, and what was seen."""
    token = json.loads(metadata(options, "instance/service-accounts/default/token"))["access_token"]
    path = f"projects/{options.project}/locations/{options.zone}/nodes/{options.name}"
    node, now = call(options, "GET", path, token)
    labels = (node or {}).get("labels", {})
    if node is None or labels.get(ID_LABEL) != options.create_id:
        return LONGEST_WAIT_S, f"{path} is not this TPU"
    identity = node.get("id"), node["createTime"]
    options.first_seen = options.first_seen or identity
    if identity != options.first_seen:
        return LONGEST_WAIT_S, f"{path} is another TPU with a copy of its labels"
    ttl = labels.get(TTL_LABEL, "")
    if not ttl.isdigit():
        return LONGEST_WAIT_S, f"{path} has no time to live"
    left_s = moment(node["createTime"]) + int(ttl) + stagger_s(options) - now
    if left_s > 0:
        return min(left_s, LONGEST_WAIT_S), f"{path} has {left_s} s left"
    if node["state"] != "DELETING":
        queued = node.get("queuedResource")
        maker = call(options, "GET", queued, token)[0] if queued else None
        specs = (maker or {}).get("tpu", {}).get("nodeSpec", [])
        made_by = [spec.get("node", {}).get("labels", {}).get(ID_LABEL) for spec in specs]
        if maker and made_by != [options.create_id]:
            return LONGEST_WAIT_S, f"{queued} holds more than this TPU"
        call(options, "DELETE", f"{queued}?force=true" if maker else path, token)
    return AFTER_DELETE_S, f"{path} has expired: deletion requested"


def stagger_s(options: argparse.Namespace) -> int:
    """How much later than worker 0 this worker acts."""
    try:
        number = int(metadata(options, "instance/attributes/agent-worker-number"))
    except (OSError, ValueError):
        return 0
    return STAGGER_S * min(max(number, 0), MOST_STAGGERED)


def metadata(options: argparse.Namespace, path: str) -> str:
    """Ask the metadata server, which is on this very machine: no proxy leads there."""
    address = f"{options.metadata}/computeMetadata/v1/{path}"
    request = urllib.request.Request(address, headers={"Metadata-Flavor": "Google"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=REPLY_S) as reply:
        return str(reply.read().decode())


def call(options: argparse.Namespace, method: str, path: str, token: str) -> tuple[Any, int]:
    """Call the API: the reply (None for 404), and the service's time in seconds."""
    address = f"{options.api}/v2/{urllib.parse.quote(path, safe='/?=')}"
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(address, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=REPLY_S) as reply:
            return json.loads(reply.read()), date_of(reply)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None, date_of(error)
        raise OSError(f"{method} {path}: {error.code} {error.reason}") from error


def date_of(reply: Any) -> int:
    """The service's time, in seconds since the epoch."""
    return calendar.timegm(email.utils.parsedate(reply.headers["Date"]) or ())


def moment(text: str) -> int:
    """A time such as 2026-11-20T12:00:00.123456789Z, in seconds since the epoch."""
    return calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))


def say(what: str) -> None:
    """Write one line to the log."""
    sys.stdout.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
