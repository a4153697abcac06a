"""Which points of a kill sweep a run takes: all of them take half an hour, so that a run of everything takes every third.

HNA_SWEEP=K/N is every Nth point, beginning with the Kth; 1/1 is all (tests/run host-longer). Without it K follows the date, so that runs on
three days in a row take every point once."""
import datetime
import os
from collections.abc import Sequence

SHARES = 3


def share() -> tuple[int, int]:
    """K and N."""
    if given := os.environ.get("HNA_SWEEP"):
        number, _, of = given.partition("/")
        if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ValueError(f"HNA_SWEEP={given}: K/N with 1 <= K <= N is wanted, such as 2/3")
        return int(number), int(of)
    return datetime.datetime.now(datetime.UTC).toordinal() % SHARES + 1, SHARES


def chosen(points: Sequence) -> list:
    """This run's share of the points."""
    number, of = share()
    return list(points[number - 1::of])
