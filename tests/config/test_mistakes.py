"""Mistakes of a new user: of each list nearly all are answered so that the next move is right, and all are caught."""

from __future__ import annotations

import pytest

from tests.config.mistakes import kinds, mistakes, score

UNANSWERED = {
    "calls": 0,
    "expressions": 0,
    "fifth_stranger": 0,
    "fifty_first_stranger": 0,
    "fifty_fourth_stranger": 0,
    "fifty_third_stranger": 0,
    "fifty_second_stranger": 0,
    "first_day": 0,
    "fourth_stranger": 0,
    "half_answered": 0,
    "hydra": 1,
    "labels": 0,
    "loops": 0,
    "names": 0,
    "other_tools": 0,
    "new_python": 0,
    "new_shell": 0,
    "new_yaml": 0,
    "shells": 0,
    "rolling": 0,
    "second_stranger": 0,
    "seventh_stranger": 0,
    "eighth_stranger": 0,
    "ninth_stranger": 0,
    "sixth_stranger": 0,
    "stranger": 0,
    "teams": 0,
    "tenth_stranger": 0,
    "eleventh_stranger": 0,
    "twelfth_stranger": 0,
    "sixteenth_stranger": 0,
    "seventeenth_stranger": 0,
    "eighteenth_stranger": 0,
    "nineteenth_stranger": 0,
    "twentieth_stranger": 0,
    "twenty_second_stranger": 0,
    "twenty_third_stranger": 0,
    "twenty_fourth_stranger": 0,
    "twenty_fifth_stranger": 0,
    "twenty_seventh_stranger": 0,
    "twenty_sixth_stranger": 0,
    "twenty_eighth_stranger": 0,
    "twenty_ninth_stranger": 0,
    "thirtieth_stranger": 0,
    "thirty_fifth_stranger": 0,
    "thirty_first_stranger": 0,
    "thirty_third_stranger": 0,
    "thirty_second_stranger": 0,
    "twenty_first_stranger": 0,
    "thirteenth_stranger": 0,
    "fourteenth_stranger": 0,
    "fifteenth_stranger": 0,
    "third_stranger": 0,
    "within": 0,
    "yaml": 0,
    "thirty_fourth_stranger": 0,
    "thirty_sixth_stranger": 0,
    "thirty_eighth_stranger": 0,
    "forty_second_stranger": 0,
    "forty_third_stranger": 0,
    "fiftieth_stranger": 0,
    "forty_sixth_stranger": 0,
    "forty_ninth_stranger": 0,
    "forty_eighth_stranger": 0,
    "forty_seventh_stranger": 0,
    "forty_fifth_stranger": 0,
    "forty_fourth_stranger": 0,
    "fortieth_stranger": 0,
    "thirty_ninth_stranger": 0,
    "thirty_seventh_stranger": 0,
}


ABOUT = 6  # mistakes of a list


@pytest.mark.slow  # a fifth of a second each
@pytest.mark.parametrize("kind", kinds())
def test_mistakes_are_answered(kind: str) -> None:
    """No more are left without the right answer than were counted; each is caught.

    About six of each list are made; `make soak` makes all of them.
    """
    answered, caught, count, wrong = score(kind, every=len(mistakes(kind)) // ABOUT)
    assert count >= ABOUT
    assert [str(each) for each, answer in wrong if not answer.caught] == []
    assert caught == count
    assert count - answered <= UNANSWERED[kind], [str(each) for each, _ in wrong]


def test_the_lists_are_long_and_of_many_kinds() -> None:
    """At least 150, of which no two have one name; at most a twentieth may go unanswered."""
    every = [str(each) for kind in kinds() for each in mistakes(kind)]
    assert len(every) >= 150
    assert len(set(every)) == len(every)
    assert sum(UNANSWERED.values()) <= 0.05 * len(every)
    assert set(kinds()) == set(UNANSWERED)
