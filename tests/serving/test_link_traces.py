"""Recorded links by the names of their columns, or as mahimahi, Pensieve and ping write them."""

from pathlib import Path

import numpy as np
import pytest
from command_line import error_line, read_object, skit_here

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.loading import find
from specbench_kit.serving.link_traces import PACKET_BYTES, parse_link_file, read_link_trace
from specbench_kit.serving.network import Network

PINGS = "30.5\n50\n42\n"


def test_mahimahi_delivers_a_packet_at_each_of_its_milliseconds(tmp_path: Path) -> None:
    """A message of a packet ends with the first delivery after it was sent, and the trace begins again at its end."""
    (tmp_path / "up.trace").write_text("1\n2\n2\n50\n100\n")
    link = read_link_trace(tmp_path / "up.trace")
    assert link.reading is not None
    assert link.reading.line == (
        "up.trace: taken for mahimahi's trace, a packet of 1500 bytes at each millisecond; round trips are the link's "
        "own; 5 packets."
    )
    assert (link.rtt_s, link.duration_s) == (None, pytest.approx(0.1))
    assert link.mean_bytes_per_s == pytest.approx(5 * PACKET_BYTES / 0.1)
    size = np.full(4, float(PACKET_BYTES))
    sent_s = np.array([0.0, 0.002, 0.05, 0.1])
    assert link.transfer_s(size, sent_s) + sent_s == pytest.approx([0.001, 0.05, 0.1, 0.101])


def test_pensieve_has_seconds_and_megabits(tmp_path: Path) -> None:
    (tmp_path / "norway").write_text("0.5\t8.0\n1.5 4.0\n2.5 0.8\n")
    link = read_link_trace(tmp_path / "norway")
    assert link.reading is not None
    assert (
        "Pensieve's trace, seconds and Mbit/s; round trips are the link's own; 3 rows."
        in link.reading.line
    )
    assert link.bytes_per_s is not None
    assert link.bytes_per_s.tolist() == [1e6, 5e5, 1e5]
    own = find("wan").build().link
    assert Network(link).link(own).rtt_s == own.rtt_s
    assert Network(link).link(own).up_bytes_per_s == pytest.approx(1.6e6 / 3)


@pytest.mark.parametrize(
    ("names", "row", "expected"),
    [
        ("time_s,rtt_s,bytes_per_s", "2,0.05,1e6", (2, 0.05, 1e6)),
        ("time_ms,rtt_ms,mbit_per_s", "2000,50,8", (2, 0.05, 1e6)),
        ("time_us,rtt_us,kbps", "2e6,5e4,8000", (2, 0.05, 1e6)),
        ("Time_ns,RTT_ns,bit_per_s", "2e9,5e7,8e6", (2, 0.05, 1e6)),
        ("time_s rtt_ms Mbps", "2 50 8", (2, 0.05, 1e6)),
        ("time_s,loss,mbps", "2,0.1,8", (2, None, 1e6)),
    ],
)
def test_columns_say_their_units(
    names: str, row: str, expected: tuple[float, float | None, float], tmp_path: Path
) -> None:
    (tmp_path / "link.csv").write_text(f"{names}\n{row}\n")
    link = read_link_trace(tmp_path / "link.csv")
    found = [
        None if values is None else values[0]
        for values in (link.time_s, link.rtt_s, link.bytes_per_s)
    ]
    assert found == [None if value is None else pytest.approx(value) for value in expected]
    assert link.reading is not None
    assert ("loss not read" in link.reading.line) == ("loss" in names)


@pytest.mark.parametrize(
    ("text", "stated", "message"),
    [
        (
            PINGS,
            "",
            r"50 is no round trip in seconds: state what it is, as .*:unit=ms for round trips",
        ),
        ("0,300\n1,700\n", "", r"700 is no round trip in seconds"),
        (
            PINGS,
            "format=mahimahi",
            "mahimahi's traces hold whole milliseconds from 0 on that never fall",
        ),
        ("3\n2\n", "format=mahimahi", "mahimahi's traces hold whole milliseconds"),
        (
            "1760000000000\n1760000000001\n",
            "",
            "mahimahi's traces hold whole milliseconds from 0 on that never fall",
        ),
        (
            PINGS,
            "format=pensieve",
            "has 1 columns, which pensieve's traces have not: name its columns",
        ),
        (
            "0 8\n1 4\n",
            "unit=ms",
            "unit=ms is for round trips, and the units of pensieve's traces are known",
        ),
        (
            "rtt_s\n5\n",
            "unit=ms",
            "its columns name what they are, rtt_s: leave format= and unit= out",
        ),
        (PINGS, "format=ping", "format must be mahimahi or pensieve or pings, not 'ping'"),
        (
            "time,delay\n0,5\n",
            "",
            "has the columns time, delay: name each once, as rtt_s or rtt_ms",
        ),
    ],
)
def test_a_unit_is_never_guessed(text: str, stated: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "link.csv").write_text(text)
    with pytest.raises(SkitError, match=message) as refused:
        read_link_trace(tmp_path / "link.csv", stated)
    assert "\n" not in str(refused.value)


def test_stated_round_trips_are_read_in_their_unit(tmp_path: Path) -> None:
    (tmp_path / "pings.txt").write_text(PINGS)
    link = parse_link_file(f"{tmp_path / 'pings.txt'}:unit=ms")
    assert link.rtt_s is not None
    assert link.rtt_s.tolist() == [0.0305, 0.05, 0.042]
    assert link.reading is not None
    assert "taken for round trips in milliseconds, a second apart as stated" in link.reading.line
    # As little as a whole number that rises is taken for mahimahi where round trips are stated.
    (tmp_path / "pings.txt").write_text("30\n50\n")
    link = parse_link_file(f"{tmp_path / 'pings.txt'}:unit=ms")
    assert link.rtt_s is not None
    assert link.rtt_s.tolist() == [0.03, 0.05]


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        (
            "rtt_s\n" + "0.1\n" * 999 + "30\n",
            "a round trip of 30 s; if round trips are in another unit, name it, as rtt_ms.",
        ),
        (
            "time_s,bytes_per_s\n0,1.6\n1,2\n",
            "1.8 bytes per second on average; if it is another unit, name it",
        ),
    ],
)
def test_a_value_that_cannot_be_is_doubted_before_any_result(
    text: str, doubt: str, tmp_path: Path
) -> None:
    trace = tmp_path / "link.csv"
    trace.write_text(text)
    options = (
        "--acceptance",
        "iid:alpha=0.8,length=4",
        "--output-tokens",
        4,
        "--prompt-tokens",
        8,
        "--devices",
        2,
    )
    done = skit_here(
        "simulate",
        *options,
        "--seeds",
        1,
        "--duration",
        60,
        "--link-trace",
        trace,
        "--out",
        tmp_path / "out",
    )
    assert done.returncode == 0, done.stderr
    words = " ".join(done.stdout.split())
    assert words.index(f"DOUBTFUL: link.csv: {doubt}") < words.index("simulated seconds")
    (folder,) = (tmp_path / "out").iterdir()
    assert read_object(folder / "run.json")["files"][0].startswith(
        "link.csv: taken for a recorded link by its columns"
    )


def test_a_trace_of_mahimahi_moves_a_simulation_through_the_command(tmp_path: Path) -> None:
    """A slow cellular link, stated or recognised, gives one result; in other words it is refused."""
    trace = tmp_path / "cell.up"
    trace.write_text("".join(f"{20 * n}\n" for n in range(1, 200)))
    options = (
        "--acceptance",
        "iid:alpha=0.8,length=4",
        "--output-tokens",
        8,
        "--prompt-tokens",
        8,
        "--devices",
        2,
    )
    found: list[object] = []
    for text in (str(trace), f"{trace}:format=mahimahi"):
        out = tmp_path / f"out{len(found)}"
        done = skit_here(
            "simulate", *options, "--seeds", 1, "--duration", 60, "--link-trace", text, "--out", out
        )
        assert done.returncode == 0, done.stderr
        (folder,) = out.iterdir()
        found.append(read_object(folder / "summary.json")["rows"])
    assert found[0] == found[1]
    refused = skit_here(
        "simulate", *options, "--link-trace", f"{trace}:format=pings,unit=weeks", "--out", tmp_path
    )
    assert "unit must be s or ms or us or ns" in error_line(refused)


def test_a_refusal_names_the_value_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "link.csv").write_text("rtt_s\n40\n50\n")
    lengths = ("--prompt-tokens", 8, "--output-tokens", 8)
    acceptance = ("--acceptance", "iid:alpha=0.8,length=4")
    done = skit_here("simulate", *acceptance, *lengths, "--link-trace", tmp_path / "link.csv")
    line = error_line(done)
    assert "no batch can meet the SLO" in line
    assert "link.csv: a round trip of 50 s; if round trips are in another unit" in line
