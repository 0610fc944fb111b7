"""What the gateway is compared with: each peer in one file, tuned as people would who know it (keep-alive, no access log, raw bytes)."""

from __future__ import annotations

import argparse


def arguments() -> argparse.Namespace:
    """`--port` to listen on at loopback and `--upstream` HOST:PORT, which every peer takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    return parser.parse_args()
