"""wrk as the generator: it runs a Lua script per load and prints one line of JSON.

Only the pause is a Lua function that wrk calls for each request; wrk encodes the fixed request
once. wrk has no open loop, so each connection pauses instead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bench.load import GeneratorError, Load, Pace, Request

MARK = "bench-result "
ANSWER_TIMEOUT_S = 30

_DONE = """
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('bench-result {"requests":%d,"duration_us":%d,"status":%d,' ..
    '"connect":%d,"read":%d,"write":%d,"timeout":%d,"mean_us":%.1f,"p50_us":%d,"p99_us":%d}\\n',
    summary.requests, summary.duration, e.status, e.connect, e.read, e.write, e.timeout,
    latency.mean, latency:percentile(50), latency:percentile(99)))
end
"""


class _Result(msgspec.Struct):
    requests: int
    duration_us: int
    status: int
    connect: int
    read: int
    write: int
    timeout: int
    mean_us: float
    p50_us: int
    p99_us: int


def script(request: Request, body_path: str, pace: Pace) -> str:
    """The Lua script of one load; the body is read from a file, because it may be binary."""
    lines = [f"wrk.method = {_quoted(request.method)}"]
    for name, value in request.headers:
        lines.append(f"wrk.headers[{_quoted(name)}] = {_quoted(value)}")
    lines.append(f'local body = assert(io.open({_quoted(body_path)}, "rb"))')
    lines.append('wrk.body = body:read("*a")')
    lines.append("body:close()")
    if pace.pause_ms > 0:
        low_ms, high_ms = pace.pause_range_ms
        # wrk takes whole milliseconds; random rounding keeps the mean.
        lines.append(
            "function delay()"
            f" return math.floor({low_ms:.4f} + math.random() * {high_ms - low_ms:.4f}"
            " + math.random()) end"
        )
    return "\n".join(lines) + "\n" + _DONE


def parse(output: str, generator_cpu_s: float) -> Load:
    """The Load in the output of wrk. Raises GeneratorError if there is none."""
    found = re.search(rf"^{MARK}(.*)$", output, re.MULTILINE)
    if found is None:
        raise GeneratorError(f"wrk printed no result; its output:\n{output[-1000:]}")
    try:
        result = msgspec.json.decode(found[1], type=_Result)
    except msgspec.DecodeError as error:
        raise GeneratorError(
            f"the result of wrk, {found[1]!r}, does not decode: {error}"
        ) from error
    if result.duration_us <= 0:
        raise GeneratorError(f"wrk ran for {result.duration_us} us")
    return Load(
        requests=result.requests,
        not_2xx=result.status,
        socket_errors=result.connect + result.read + result.write + result.timeout,
        seconds=result.duration_us / 1e6,
        mean_ms=result.mean_us / 1e3,
        p50_ms=result.p50_us / 1e3,
        p99_ms=result.p99_us / 1e3,
        generator_cpu_s=generator_cpu_s,
    )


class Wrk:
    """Runs wrk."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        said = subprocess.run([binary, "--version"], check=False, capture_output=True, text=True)
        version = re.search(r"^wrk\s+(?:debian/)?([\w.]+)", said.stdout, re.MULTILINE)
        self.name = f"wrk {version[1]}" if version else "wrk"

    def run(self, port: int, request: Request, pace: Pace, cpus: Iterable[int]) -> Load:
        """Runs one load with one thread per CPU, and at most one per connection."""
        chosen = set(cpus)
        threads = min(len(chosen), pace.connections)
        with tempfile.TemporaryDirectory(prefix="headgate-bench-wrk-") as folder:
            body_path = Path(folder) / "body"
            body_path.write_bytes(request.body)
            script_path = Path(folder) / "load.lua"
            script_path.write_text(script(request, str(body_path), pace))
            # wrk takes only whole seconds.
            seconds = max(1, round(pace.seconds))
            process = subprocess.Popen(
                [self._binary, f"-t{threads}", f"-c{pace.connections}", f"-d{seconds}s",
                 "--timeout", f"{ANSWER_TIMEOUT_S}s", "-s", str(script_path),
                 f"{'https' if request.by_tls else 'http'}://127.0.0.1:{port}{request.path}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            os.sched_setaffinity(process.pid, chosen)
            assert process.stdout is not None
            output = process.stdout.read().decode(errors="replace")
            process.stdout.close()
            # wait4, unlike wait, returns the CPU that this child has used.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise GeneratorError(f"wrk ended with {process.returncode}:\n{output[-1000:]}")
        return parse(output, usage.ru_utime + usage.ru_stime)


def find() -> Wrk | None:
    """wrk, if it is installed."""
    binary = shutil.which("wrk")
    return Wrk(binary) if binary else None


def _quoted(text: str) -> str:
    """A Lua string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
